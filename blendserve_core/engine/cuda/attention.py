"""Attention of one nano-batch over the paged KV cache, by FlashInfer's kernels. Hq and Hkv heads of size D.

A step is ``begin`` once, then for every layer ``append``, ``attend_chunks`` and ``attend_decodes``, maybe on two streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blendserve_core.engine.cuda.batch import BatchArrays
from blendserve_core.engine.cuda.kernels import AttentionWrapper, Kernels
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.staging import CopyGate, Staged, Staging
from blendserve_core.engine.cuda.workspaces import Workspaces
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.rope import Rope


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """What every nano-batch's attention has in common. ``cos_sin`` is [positions, D] float32: cosines, then sines."""

    kernels: Kernels
    config: ModelConfig
    pool: DeviceKVPool
    workspaces: Workspaces
    cos_sin: Tensor
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def make(
        cls, kernels: Kernels, config: ModelConfig, pool: DeviceKVPool, workspaces: Workspaces, dtype: torch.dtype,
        device: torch.device,
    ) -> AttentionSetting:  # fmt: skip
        cos, sin = Rope(config).rotation(torch.arange(config.max_context_tokens))
        cos_sin = torch.cat((cos[:, 0], sin[:, 0]), dim=-1).contiguous().to(device)
        return cls(kernels, config, pool, workspaces, cos_sin, dtype, device)


class NanoBatchAttention:
    """Attention over any nano-batch, planned anew each step. It is sized for ``max_rows`` rows, and grows where there are more.

    With ``num_graph_rows`` it serves decodes alone, always so many, from memory that stays in place: a CUDA graph may hold it.
    ``max_listed_pages`` is a limit then, and else what is expected.
    """

    def __init__(
        self, setting: AttentionSetting, max_rows: int, max_listed_pages: int, num_graph_rows: int | None = None
    ) -> None:
        self._setting = setting
        # Ten arrays of at most a number per row and one more, and the pages.
        self._staging = Staging(10 * (max_rows + 8) + max_listed_pages, setting.device)
        self._staged: Staged
        self._batch: BatchArrays
        self._allocate_out(max_rows)
        self._is_graph = num_graph_rows is not None
        # Two sets take turns: a plan writes pinned memory that the copy of the plan before may still read. A graph has but one.
        self._wrappers = [self._make_wrappers(num_graph_rows, max_listed_pages) for _ in range(1 if self._is_graph else 2)]
        self._turn = 0
        self._gate = CopyGate(setting.device)

    @property
    def num_rows(self) -> int:
        return self._batch.num_rows

    @property
    def has_chunks(self) -> bool:
        return self._batch.num_decodes < self._batch.num_sequences

    @property
    def has_decodes(self) -> bool:
        return self._batch.num_decodes > 0

    @property
    def token_ids(self) -> Tensor:
        """[T] on the device."""
        return self._staged.device["token_ids"]

    def begin(self, batch: BatchArrays) -> None:
        """Send a step's index arrays to the device and plan its attention, on the current stream."""
        self._batch = batch
        if batch.num_rows > len(self.out):
            self._allocate_out(batch.num_rows)
        self._staged = self._staging.upload(
            {
                "token_ids": batch.token_ids,
                "positions": batch.positions,
                "sequence_of_row": batch.sequence_of_row,
                "table_positions": batch.table_positions,
                "row_indptr": batch.row_indptr,
                "indptr": batch.own.indptr,
                "last_page_lens": batch.own.last_page_lens,
                "shared_row_indptr": batch.shared_indptr,
                "shared_indptr": batch.shared.indptr,
                "shared_last_page_lens": batch.shared.last_page_lens,
                "shared_indices": batch.shared.indices,
                "indices": batch.own.indices,
            }
        )
        self._turn = (self._turn + 1) % len(self._wrappers)
        if self._is_graph:
            self._gate.wait()
        self._plan_own()
        if batch.num_shared_rows:
            self._plan_shared()
        if self._is_graph:
            self._gate.close()

    def see_tokens(self, sampled_before: Tensor) -> None:
        """Put ``sampled_before`` [N] int32 into the places of the tokens that stand for them (see StepPlan), on the device."""
        token_ids = self.token_ids
        samples = (-1 - token_ids).clamp_(min=0)
        token_ids.copy_(torch.where(token_ids < 0, sampled_before[samples], token_ids))

    def append(self, layer: int, qkv: Tensor) -> Tensor:
        """Rotate queries and keys of ``qkv`` [T, Hq + 2 * Hkv, D] in place, keep keys and values; returns the queries."""
        setting, on_device = self._setting, self._staged.device
        heads = (setting.config.num_heads, setting.config.num_kv_heads, setting.config.num_kv_heads)
        q, k, v = qkv.split(heads, dim=1)
        kernels, pool = setting.kernels, setting.pool
        kernels.apply_rope(on_device["positions"], q, k, setting.config.head_dim, setting.cos_sin, is_neox=True)
        kernels.append_paged_kv_cache(
            pool.stored(k), pool.stored(v), on_device["sequence_of_row"], on_device["table_positions"], pool.layer(layer),
            on_device["indices"], on_device["indptr"], on_device["last_page_lens"], kv_layout="NHD",
        )  # fmt: skip
        return q

    def attend_chunks(self, layer: int, q: Tensor) -> None:
        """Causal attention of every row behind the decodes, into ``out``."""
        first = self._batch.num_decodes
        wrapper = self._wrappers[self._turn].chunks
        wrapper.run(q[first:], self._setting.pool.layer(layer), out=self.out[first : self.num_rows])

    def attend_decodes(self, layer: int, q: Tensor) -> None:
        """Attention of the decodes, into ``out``; a shared prefix is read once for all of its readers."""
        num_decodes, num_shared = self._batch.num_decodes, self._batch.num_shared_rows
        wrappers, pages = self._wrappers[self._turn], self._setting.pool.layer(layer)
        q, out = q[:num_decodes], self.out[:num_decodes]
        if not num_shared:
            wrappers.decodes.run(q, pages, out=out)
            return
        _, lse = wrappers.decodes.run(q, pages, out=out, return_lse=True)
        shared_out, shared_lse = wrappers.shared.run(q[:num_shared], pages, return_lse=True)
        self._setting.kernels.merge_state_in_place(out[:num_shared], lse[:num_shared], shared_out, shared_lse)

    def _allocate_out(self, num_rows: int) -> None:
        config, setting = self._setting.config, self._setting
        self.out = torch.empty(num_rows, config.num_heads, config.head_dim, dtype=setting.dtype, device=setting.device)

    def _plan_own(self) -> None:
        batch, host, indices = self._batch, self._staged.host, self._staged.device["indices"]
        num_decodes, wrappers = batch.num_decodes, self._wrappers[self._turn]
        indptr, rows, last = host["indptr"], host["row_indptr"], host["last_page_lens"]
        if num_decodes:
            num_pages = int(batch.own.indptr[num_decodes])
            table = indptr[: num_decodes + 1], indices[:num_pages], last[:num_decodes]
            self._plan(wrappers.decodes, rows[: num_decodes + 1], table, is_causal=True)
        if self.has_chunks:
            first_page, first_row = int(batch.own.indptr[num_decodes]), int(batch.row_indptr[num_decodes])
            table = indptr[num_decodes:] - first_page, indices[first_page:], last[num_decodes:]
            self._plan(wrappers.chunks, rows[num_decodes:] - first_row, table, is_causal=True)

    def _plan_shared(self) -> None:
        host, indices = self._staged.host, self._staged.device["shared_indices"]
        table = host["shared_indptr"], indices, host["shared_last_page_lens"]
        self._plan(self._wrappers[self._turn].shared, host["shared_row_indptr"], table, is_causal=False)

    def _plan(self, wrapper: AttentionWrapper, rows: Tensor, table: tuple[Tensor, ...], *, is_causal: bool) -> None:
        """``rows`` and the bounds in ``table`` are on the host, where planning reads them without waiting for the device."""
        config, setting = self._setting.config, self._setting
        wrapper.plan(
            rows, *table, config.num_heads, config.num_kv_heads, config.head_dim, setting.pool.page_size, causal=is_causal,
            sm_scale=config.head_dim**-0.5, q_data_type=setting.dtype, kv_data_type=setting.pool.dtype, non_blocking=True,
        )  # fmt: skip

    def _make_wrappers(self, num_graph_rows: int | None, max_listed_pages: int) -> _Wrappers:
        make, spaces = self._setting.kernels.attention_wrapper, self._setting.workspaces
        if num_graph_rows is None:
            # fa2 is the one module that serves all three; "auto" would pick others by device and shape.
            chunks, decodes, shared = (
                make(space, "NHD", backend="fa2") for space in (spaces.chunks, spaces.decodes, spaces.decodes)
            )
            return _Wrappers(chunks, decodes, shared)

        def ints(num: int) -> Tensor:
            return torch.zeros(num, dtype=torch.int32, device=self._setting.device)

        decodes = make(
            spaces.decodes, "NHD", use_cuda_graph=True, qo_indptr_buf=ints(num_graph_rows + 1),
            paged_kv_indptr_buf=ints(num_graph_rows + 1), paged_kv_indices_buf=ints(max_listed_pages),
            paged_kv_last_page_len_buf=ints(num_graph_rows), backend="fa2",
        )  # fmt: skip
        return _Wrappers(decodes, decodes, decodes)


@dataclass(frozen=True, slots=True)
class _Wrappers:
    chunks: AttentionWrapper
    decodes: AttentionWrapper
    shared: AttentionWrapper
