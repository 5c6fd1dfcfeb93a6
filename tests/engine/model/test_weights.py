"""Checkpoints that do not fit their config are refused by name before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SIZES, our_logits, saved_model
from torch import Tensor
from transformers import LlamaConfig

from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_model(LlamaConfig(**SIZES, tie_word_embeddings=True), tmp_path)
    return tmp_path


def edit_tensors(folder: Path, remove: str = "", add: dict[str, Tensor] | None = None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(remove, None)
    save_file(tensors | (add or {}), path)


def load(folder: Path):
    return load_decoder(folder, TorchOps(), torch.float32)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    edit_tensors(folder, remove="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ValueError, match=r"missing tensors model\.layers\.1\.mlp\.up_proj\.weight; unexpected tensors none"):
        load(folder)


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    edit_tensors(folder, add={"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)})
    with pytest.raises(ValueError, match=r"unexpected tensors model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    edit_tensors(folder, add={"model.norm.weight": torch.zeros(31)})
    with pytest.raises(ValueError, match=r"model\.norm\.weight \(31,\) instead of \(32,\)"):
        load(folder)


def test_a_stored_copy_of_tied_embeddings_is_ignored(folder: Path) -> None:
    before = our_logits(load(folder), torch.arange(9))
    edit_tensors(folder, add={"lm_head.weight": torch.zeros(SIZES["vocab_size"], 32)})
    assert torch.equal(our_logits(load(folder), torch.arange(9)), before)


def test_pickled_weights_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(32)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        load(folder)


def test_a_second_copy_under_other_names_is_not_read(folder: Path) -> None:
    save_file({"layers.0.wq": torch.zeros(2)}, folder / "consolidated.safetensors")
    load(folder)


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    saved_model(LlamaConfig(**SIZES), folder / "sharded", max_shard_size="20KB")
    shards = sorted((folder / "sharded").glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(ValueError, match=f"incomplete: {shards[1].name} stand in"):
        load(folder / "sharded")


def test_weights_outlive_the_files_they_were_read_from(folder: Path) -> None:
    decoder = load(folder)
    before = our_logits(decoder, torch.arange(9))
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(our_logits(decoder, torch.arange(9)), before)


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path)


def test_a_config_of_another_architecture_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(ValueError, match="'gpt2' is not served"):
        load(folder)
