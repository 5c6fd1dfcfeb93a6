""":class:`PagedAttention` on the native kernels: CPU-native pages, and shared prefixes read once per step (cascade)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blendserve_core.engine.cpu.layout import token_positions, token_slots
from blendserve_core.engine.cpu.native.grouping import group_step
from blendserve_core.engine.cpu.native.kernels import AppendCall, AttentionCall, NativeKernels
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE, allocate_pages
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.rope import Rope
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.schedule.step import StepPlan


class NativeAttention:
    """Owns the KV pages of every layer. Outputs of one layer are overwritten by the next.

    A shared prefix is read once where that pays by the costs in ``cascade``, and never with None. Then a token's attention has
    the same bits in any step: keys are passed in blocks that begin at position 0.
    """

    def __init__(
        self, config: ModelConfig, kernels: NativeKernels, num_pages: int, dtype: torch.dtype, cascade: CascadeCosts | None
    ) -> None:
        self._kernels = kernels
        self._cascade = cascade
        self._num_heads = config.num_heads
        self._head_dim = config.head_dim
        self._rope = Rope(config)
        self._pages = allocate_pages(config.num_layers, num_pages, config.num_kv_heads, config.head_dim, dtype)
        self._dtype = dtype
        self._pages_of = self._pages.unbind()
        self._append: AppendCall
        self._passes: list[AttentionCall]
        self._out: Tensor
        self._states: PartialStates | None

    def begin_step(self, step: StepPlan) -> None:
        for src, dst in zip(step.copy_src_pages.tolist(), step.copy_dst_pages.tolist(), strict=True):
            # Whole pages: slots beyond the copied ones are written before they are read.
            self._pages[:, dst] = self._pages[:, src]
        positions = token_positions(step)
        shape = (step.num_tokens, self._num_heads, self._head_dim)
        q, self._out = torch.empty(2, *shape, dtype=self._dtype)
        cos, sin = self._rope.rotation(torch.from_numpy(positions))
        slots = token_slots(step, positions, PAGE_SIZE)
        self._append = self._kernels.prepare_append(self._pages_of[0], cos, sin, slots, q)
        groups = group_step(step, self._cascade, self._kernels.num_threads)
        attention = partial(self._kernels.prepare_attention, q, self._pages_of[0], scale=self._head_dim**-0.5)
        if groups.shared is None:
            self._states, self._passes = None, [attention(groups.own, out=self._out)]
            return
        self._states = states = PartialStates(shape)
        passes = (groups.shared, states.shared), (groups.own, states.own)
        self._passes = [attention(of_pass, out=out, lse=lse) for of_pass, (out, lse) in passes]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        pages = self._pages_of[layer]
        self._append(qkv, pages)
        for attend in self._passes:
            attend(pages)
        if self._states is not None:
            self._kernels.merge_states(*self._states.shared, *self._states.own, self._out)
        return self._out.flatten(1)


class PartialStates:
    """Outputs and log-sum-exps over the shared and over the own part of each row's context, reused by every layer."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        no_tokens = -torch.inf  # stays where a row has no shared part
        self.shared = torch.empty(shape), torch.full(shape[:2], no_tokens)
        self.own = torch.empty(shape), torch.empty(shape[:2])
