"""Attention kernels of the CPU engine against this core's read bandwidth and against PyTorch, on one thread.

    python benchmarks/cpu_kernels.py [--isa AVX2]

Every figure is a median of rounds in which the things compared take turns, so a busy machine moves both sides alike.
Layers are read in turn, as in a model, and together are larger than any cache. Shape: SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from blendserve_core.engine.cpu.native.kernels import AttentionGroups, Isa, NativeKernels
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE, allocate_pages

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
SCALE = HEAD_DIM**-0.5
NUM_LAYERS = 8
NUM_ROUNDS = 9


@dataclass(frozen=True)
class Batch:
    """Sequences of equal context length, in every layer."""

    num_sequences: int
    context_len: int
    pages: torch.Tensor
    page_indices: np.ndarray
    q: torch.Tensor

    @property
    def pages_per_sequence(self) -> int:
        return self.context_len // PAGE_SIZE

    @property
    def kv_bytes(self) -> int:
        return 2 * self.num_sequences * self.context_len * NUM_KV_HEADS * HEAD_DIM * self.pages.element_size()


def make_batch(num_sequences: int, context_len: int, dtype: torch.dtype, num_shared: int = 0, shuffled: bool = True) -> Batch:
    """The first ``num_shared`` tokens of every sequence are the same pages."""
    num_pages = num_sequences * context_len // PAGE_SIZE
    pages = allocate_pages(NUM_LAYERS, num_pages, NUM_KV_HEADS, HEAD_DIM, dtype)
    pages.copy_(torch.randn(pages.shape[1:]).to(dtype))
    order = np.random.default_rng(0).permutation(num_pages) if shuffled else np.arange(num_pages)
    order = order.astype(np.int32).reshape(num_sequences, -1)
    order[:, : num_shared // PAGE_SIZE] = order[0, : num_shared // PAGE_SIZE]
    return Batch(num_sequences, context_len, pages, order.ravel(), torch.randn(num_sequences, NUM_HEADS, HEAD_DIM).to(dtype))


def groups(batch: Batch, rows_per_group: int, first_token: int, num_tokens: int) -> AttentionGroups:
    """Groups of neighbouring rows that read ``num_tokens`` from ``first_token`` on."""
    starts = np.arange(0, batch.num_sequences, rows_per_group)
    return AttentionGroups(
        group_indptr=np.arange(0, batch.num_sequences + 1, rows_per_group, dtype=np.int32),
        row_ids=np.arange(batch.num_sequences, dtype=np.int32),
        kv_lens=np.full(batch.num_sequences, num_tokens, dtype=np.int32),
        page_starts=(starts * batch.pages_per_sequence + first_token // PAGE_SIZE).astype(np.int32),
        page_indices=batch.page_indices,
    )


def native_decode(kernels: NativeKernels, batch: Batch) -> Callable[[int], object]:
    out = torch.empty_like(batch.q)
    own = groups(batch, 1, 0, batch.context_len)
    return lambda layer: kernels.attention(batch.q, batch.pages[layer], own, SCALE, out)


def native_cascade(kernels: NativeKernels, batch: Batch, num_shared: int) -> Callable[[int], object]:
    out = torch.empty_like(batch.q)
    states = [(torch.empty(batch.q.shape), torch.empty(batch.q.shape[:2])) for _ in range(2)]
    shared = groups(batch, batch.num_sequences, 0, num_shared)
    own = groups(batch, 1, num_shared, batch.context_len - num_shared)

    def attend(layer: int) -> None:
        kernels.attention(batch.q, batch.pages[layer], shared, SCALE, *states[0])
        kernels.attention(batch.q, batch.pages[layer], own, SCALE, *states[1])
        kernels.merge_states(*states[0], *states[1], out)

    return attend


def torch_decode(batch: Batch) -> Callable[[int], object]:
    """Gather pages of a [slots, Hkv, D] pool, then scaled dot-product attention: what PyTorch alone offers."""
    pool = torch.randn(2, batch.num_sequences * batch.context_len, NUM_KV_HEADS, HEAD_DIM).to(batch.q.dtype)
    paged = pool.view(2, -1, PAGE_SIZE * NUM_KV_HEADS * HEAD_DIM)
    indices = torch.from_numpy(batch.page_indices)
    q = batch.q.unflatten(1, (NUM_KV_HEADS, -1))

    def attend(layer: int) -> None:
        del layer
        keys, values = (
            kv.index_select(0, indices).view(batch.num_sequences, batch.context_len, NUM_KV_HEADS, HEAD_DIM).transpose(1, 2)
            for kv in paged
        )
        F.scaled_dot_product_attention(q, keys, values)

    return attend


def stream(kernels: NativeKernels, batch: Batch) -> Callable[[int], object]:
    """Read one layer's pages from front to back: bytes over the time of this are the core's read bandwidth."""
    return lambda layer: kernels.sum_words(batch.pages[layer])


def take_turns(*runs: Callable[[int], object]) -> list[float]:
    """Median seconds of each run on one layer. The next layer to be read was read longest ago."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(NUM_ROUNDS * NUM_LAYERS):
        for position, run in enumerate(runs):
            layer = (turn + position * NUM_LAYERS // len(runs)) % NUM_LAYERS
            started = time.thread_time()  # others on this core do not count
            run(layer)
            seconds[position].append(time.thread_time() - started)
    return [statistics.median(of_run[NUM_LAYERS:]) for of_run in seconds]


def report_bandwidth(kernels: NativeKernels, dtype: torch.dtype) -> None:
    for (num_sequences, context_len), shuffled in itertools.product(((32, 1024), (8, 4096)), (False, True)):
        batch = make_batch(num_sequences, context_len, dtype, shuffled=shuffled)
        decode_s, torch_s, stream_s = take_turns(native_decode(kernels, batch), torch_decode(batch), stream(kernels, batch))
        read, kernel = batch.kv_bytes / stream_s / 1e9, batch.kv_bytes / decode_s / 1e9
        print(
            f"{str(dtype)[6:]:9s} {num_sequences:3d} x {context_len:5d}, pages {'anywhere' if shuffled else 'in order'}:"
            f" decode {decode_s * 1e3:6.2f} ms = {kernel:5.1f} GB/s, {kernel / read:4.0%} of {read:.1f} GB/s read;"
            f" gather + SDPA {torch_s / decode_s:4.1f} times as long"
        )


def report_cascade(kernels: NativeKernels, dtype: torch.dtype) -> None:
    for num_sequences, num_shared in ((16, 1024), (64, 256), (64, 1024), (64, 4096)):
        batch = make_batch(num_sequences, num_shared + 128, dtype, num_shared)
        alone_s, cascade_s = take_turns(native_decode(kernels, batch), native_cascade(kernels, batch, num_shared))
        print(
            f"{str(dtype)[6:]:9s} {num_sequences:3d} sequences, {num_shared:4d} shared + 128 own tokens:"
            f" {alone_s * 1e3:6.2f} ms, prefix read once {cascade_s * 1e3:6.2f} ms, {alone_s / cascade_s:4.1f} times faster"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=[isa.name for isa in Isa], help="instruction set, by default the best there is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels = NativeKernels(num_threads=1, isa=Isa[arguments.isa] if arguments.isa else None)
    print(f"{kernels.isa.name}, one thread, {torch.__version__}")
    for dtype in (torch.bfloat16, torch.float32):
        report_bandwidth(kernels, dtype)
        report_cascade(kernels, dtype)


if __name__ == "__main__":
    main()
