"""Fixtures that many tests share: a tiny model folder, a request file, and Prefect's server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_requests import write_requests

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def no_lengths_of_earlier_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's caches, but for output lengths: a file stands where their folder would be, so that jobs keep none."""
    real = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = tmp_path_factory.mktemp("cache")
    (cache / "blendserve").mkdir()
    (cache / "blendserve" / "lengths").touch()
    for name in ("huggingface", "blendserve/hardware", "blendserve/models", "blendserve/native"):
        (real / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(real / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights, and a tokenizer whose tokens are bytes: real files, done in milliseconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture
def requests_file(tmp_path: Path) -> Path:
    return write_requests(tmp_path / "requests.parquet")


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory):
    """Prefect's server with a database of its own, once for all tests that run a flow in this process."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
