"""From what a user calls a model to a folder with config, safetensors and tokenizer."""

from __future__ import annotations

from pathlib import Path

from blendserve_core.engine.model.demo import demo_model

DEMO = "demo"
# No pickles, no other frameworks' weights, and not the second copy that some repositories keep under original/.
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
HUB_IGNORED = ["original/*", "onnx/*", "consolidated*"]


def resolve_model(model: str, revision: str | None = None) -> Path:
    """Folder of ``model``: a local folder, "demo", or a Hugging Face hub id (fetched into the hub's own cache).

    Raises ValueError for what is none of these, cannot be fetched, or holds no safetensors.
    """
    if model == DEMO:
        return demo_model()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _with_safetensors(folder.resolve())
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ValueError(f"model {model!r} is no folder here, and no hub id of the form owner/name")
    return _with_safetensors(_fetch(model, revision))


def _with_safetensors(folder: Path) -> Path:
    """The folder, if it holds weights that can be read without running what is in them."""
    if any(folder.glob("*.safetensors")):
        return folder
    pickles = sorted(path.name for suffix in PICKLE_SUFFIXES for path in folder.glob(f"*{suffix}"))
    if pickles:
        raise ValueError(
            f"{folder}: {pickles[0]} is a pickle, which can run any program when it is read, and so is never read. Where you "
            "trust its origin, convert it: transformers' AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)."
        )
    raise ValueError(f"{folder}: no *.safetensors files; a model is a folder of config.json, tokenizer and safetensors")


def _fetch(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(model, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_IGNORED)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"model {model!r} (revision {revision or 'main'}) could not be fetched from the hub: {error}"
        ) from error
    return Path(folder)
