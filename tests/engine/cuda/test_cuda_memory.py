"""Sizing, and what a user is told when a model does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flashinfer_stand_in import stand_in_kernels
from thread_group import on_every_rank
from tiny_models import SIZES, saved_model
from transformers import LlamaConfig

from blendserve_core.engine.cuda import rank
from blendserve_core.engine.cuda.lanes import HostLanes
from blendserve_core.engine.cuda.memory import GIB, check_model_fits, kv_pages, page_bytes, weight_bytes
from blendserve_core.engine.cuda.sampling import DeviceSampler
from blendserve_core.engine.cuda.step_runner import StepRunner
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.parallel.weights import load_part
from schemas.parameters import EngineOptions

LLAMA_3_70B = ModelConfig.from_dict(
    {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
    }
)


@pytest.mark.parametrize("is_tied", [False, True])
def test_weights_take_what_loading_them_takes(is_tied: bool, tmp_path: Path) -> None:
    saved_model(LlamaConfig(**SIZES | {"vocab_size": 96}, tie_word_embeddings=is_tied), tmp_path)
    held: list[torch.Tensor] = []

    class NotingOps(TorchOps):
        def linear(self, weight, bias):
            held.append(weight)
            return super().linear(weight, bias)

    decoders = on_every_rank(2, lambda group: load_part(tmp_path, NotingOps(), torch.bfloat16, group))
    norms = [decoders[0].final_norm, *(norm for layer in decoders[0].layers for norm in (layer.input_norm, layer.mlp_norm))]
    total = sum(tensor.nbytes for tensor in [decoders[0].embeddings, *norms]) + sum(weight.nbytes for weight in held) // 2
    assert weight_bytes(ModelConfig.from_folder(tmp_path), torch.bfloat16, 2) == total


def test_a_model_that_does_not_fit_names_the_parallelism_that_would_do() -> None:
    with pytest.raises(ValueError, match=r"needs 133\.4 GiB .* 80\.0 GiB are free; --tensor-parallel 2 would do"):
        check_model_fits(LLAMA_3_70B, torch.bfloat16, 1, 80 * GIB)
    check_model_fits(LLAMA_3_70B, torch.bfloat16, 2, 80 * GIB)


def test_where_no_parallelism_helps_the_message_says_so() -> None:
    one_head = replace(LLAMA_3_70B, num_heads=1, num_kv_heads=1)
    with pytest.raises(ValueError, match="no --tensor-parallel that divides its heads would do"):
        check_model_fits(one_head, torch.bfloat16, 1, 80 * GIB)


def test_kv_takes_what_weights_and_workspace_leave_and_no_more_than_the_requests_can_use() -> None:
    bytes_per_page = page_bytes(LLAMA_3_70B, torch.bfloat16, 16)
    assert bytes_per_page == 2 * 80 * 8 * 128 * 2 * 16
    few = kv_pages(20 * GIB, 4 * GIB, bytes_per_page, most_usable_pages=10**9)
    assert 0.85 * 16 * GIB < few * bytes_per_page < 16 * GIB
    assert kv_pages(20 * GIB, 4 * GIB, bytes_per_page, most_usable_pages=7) == 7


def test_an_8_bit_cache_holds_twice_as_much() -> None:
    assert 2 * page_bytes(LLAMA_3_70B, torch.float8_e4m3fn, 16) == page_bytes(LLAMA_3_70B, torch.bfloat16, 16)


def test_no_room_for_kv_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"no room for KV: .* --max-step-tokens"):
        kv_pages(4 * GIB, 4 * GIB, 1000, most_usable_pages=10)


class CountingCuda:
    """PyTorch's account of a device's memory, told by the test; everything runs on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int, peak_bytes: int) -> None:
        told = {
            "memory_allocated": lambda: 0,
            "max_memory_allocated": lambda: peak_bytes,
            "mem_get_info": lambda: (free_bytes, free_bytes),
        }
        for name in ("reset_peak_memory_stats", "synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)
        for name, tell in told.items():
            monkeypatch.setattr(torch.cuda, name, tell)
        monkeypatch.setattr(rank, "one_stream", lambda _device: HostLanes())


def test_a_full_step_is_run_and_what_it_took_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_model(LlamaConfig(**SIZES | {"vocab_size": 96}), tmp_path)
    options = EngineOptions(max_sequences=8, max_step_tokens=200)
    steps = []
    monkeypatch.setattr(StepRunner, "run", _noting(StepRunner.run, steps))
    sampled = []
    monkeypatch.setattr(DeviceSampler, "sample", _noting(DeviceSampler.sample, sampled))
    CountingCuda(monkeypatch, free_bytes=2 * GIB, peak_bytes=GIB)
    spec = rank.RankSpec(tmp_path, "float32", options, 10**9, tmp_path / "meet", stand_in_kernels, is_on_gpu=False)
    capacity = rank.build_rank(spec, 0).capacity
    assert [step.num_tokens for step in steps] == [200]
    assert [len(logits) for logits in sampled] == [8]
    bytes_per_page = page_bytes(ModelConfig.from_folder(tmp_path), torch.float32, 16)
    left = GIB - rank.MAX_GRAPHS * rank.GRAPH_BYTES
    assert 0.88 * left < capacity.num_pages * bytes_per_page < 0.92 * left


def _noting(run, noted: list):
    def noting(self, what, *rest):
        noted.append(what)
        return run(self, what, *rest)

    return noting
