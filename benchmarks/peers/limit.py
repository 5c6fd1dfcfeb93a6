"""What this machine could do at most: its own matrix rate and read bandwidth, and a workload's least work at these."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from peers.workloads import Workload

from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.perf.cost import causal_pairs, kv_reads
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.plan.build_tree import build_tree

NUM_ROWS = 512
READ_BYTES = 2**28
NUM_REPEATS = 7


@dataclass(frozen=True)
class MachineRates:
    """Of all cores together: bfloat16 products of this model's shapes in a large batch, and reads from memory."""

    gemm_flops_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True)
class Limit:
    """Least seconds by what they go into. Cores do one after the other, so the whole is their sum."""

    layers_s: float
    lm_head_s: float
    attention_s: float
    kv_reads_s: float

    @property
    def seconds(self) -> float:
        return self.layers_s + self.lm_head_s + self.attention_s + self.kv_reads_s


@torch.inference_mode()
def measure_machine(model: ModelSpec) -> MachineRates:
    """Medians of repeats, in about two seconds."""
    inputs, outputs = model.hidden_size, 2 * model.intermediate_size
    linears = [PackedOps().linear(torch.randn(outputs, inputs).bfloat16(), None) for _ in range(16)]
    rows = torch.randn(NUM_ROWS, inputs).bfloat16()
    gemm_s = _median_s(lambda: [linear(rows) for linear in linears])
    return MachineRates(2 * NUM_ROWS * inputs * outputs * len(linears) / gemm_s, _read_rate())


def _read_rate() -> float:
    """Every core reads memory of its own, which none of them has in its cache."""
    kernels, num_threads = NativeKernels(), torch.get_num_threads()
    arrays = [torch.ones(READ_BYTES // 4, dtype=torch.int32) for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as threads:
        return num_threads * READ_BYTES / _median_s(lambda: list(threads.map(kernels.sum_words, arrays)))


def least_work(workload: Workload, model_folder: Path, rates: MachineRates) -> Limit:
    """Every unique prompt token and every output token but a row's last goes through the layers once.

    Decodes read what only their own row has; a shared prefix, read once for many of them, counts as nothing.
    """
    model, requests = ModelSpec.from_config(model_folder, dtype="bfloat16"), workload.requests()
    tree, output_lens = build_tree(requests), np.array(workload.output_lens)
    num_tokens = tree.num_unique_tokens + int((output_lens - 1).sum())
    pairs = float(causal_pairs(tree.end_depth, tree.start_depth).sum())
    num_own = tree.end_depth[tree.node_of_request] - tree.start_depth[tree.node_of_request]
    num_read = float(kv_reads(num_own, output_lens - 1).sum())
    return Limit(
        layers_s=2 * model.num_parameters * num_tokens / rates.gemm_flops_per_s,
        lm_head_s=2 * model.num_embedding_parameters * int(output_lens.sum()) / rates.gemm_flops_per_s,
        attention_s=4 * model.query_width * model.num_layers * pairs / rates.gemm_flops_per_s,
        kv_reads_s=model.kv_bytes_per_token * num_read / rates.read_bytes_per_s,
    )


def _median_s(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds)
