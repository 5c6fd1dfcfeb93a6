""":class:`PagedAttention` on the native kernels: CPU-native pages, and shared prefixes read once per step (cascade)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blendserve_core.engine.cpu.layout import token_positions, token_slots
from blendserve_core.engine.cpu.native.grouping import StepGroups, group_step
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE, allocate_pages
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.rope import Rope, Rotation
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
        self._rotation: Rotation
        self._slots: np.ndarray
        self._groups: StepGroups
        self._q: Tensor
        self._out: Tensor
        self._states: PartialStates

    def begin_step(self, step: StepPlan) -> None:
        for src, dst in zip(step.copy_src_pages.tolist(), step.copy_dst_pages.tolist(), strict=True):
            # Whole pages: slots beyond the copied ones are written before they are read.
            self._pages[:, dst] = self._pages[:, src]
        positions = token_positions(step)
        self._rotation = self._rope.rotation(torch.from_numpy(positions))
        self._slots = token_slots(step, positions, PAGE_SIZE)
        self._groups = group_step(step, self._cascade, self._kernels.num_threads)
        shape = (step.num_tokens, self._num_heads, self._head_dim)
        self._q, self._out = torch.empty(2, *shape, dtype=self._dtype)
        if self._groups.shared is not None:
            self._states = PartialStates(shape)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        pages = self._pages[layer]
        self._kernels.rope_and_append(qkv, pages, self._rotation.cos, self._rotation.sin, self._slots, self._q)
        scale = self._head_dim**-0.5
        if self._groups.shared is None:
            self._kernels.attention(self._q, pages, self._groups.own, scale, self._out)
            return self._out.flatten(1)
        shared, own = self._states.shared, self._states.own
        self._kernels.attention(self._q, pages, self._groups.shared, scale, *shared)
        self._kernels.attention(self._q, pages, self._groups.own, scale, *own)
        self._kernels.merge_states(*shared, *own, self._out)
        return self._out.flatten(1)


class PartialStates:
    """Outputs and log-sum-exps over the shared and over the own part of each row's context, reused by every layer."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        no_tokens = -torch.inf  # stays where a row has no shared part
        self.shared = torch.empty(shape), torch.full(shape[:2], no_tokens)
        self.own = torch.empty(shape), torch.empty(shape[:2])
