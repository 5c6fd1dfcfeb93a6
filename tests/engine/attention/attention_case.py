"""Sequences that grow step by step on pages in random order, and what attention over them must give, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.model.config import ModelConfig, RopeConfig
from blendserve_core.engine.model.rope import Rope, rotate
from blendserve_core.schedule.step import StepPlan

NUM_LAYERS = 2
NUM_SLOTS = 1024


def attention_config(ratio: int, head_dim: int, num_kv_heads: int = 2) -> ModelConfig:
    """A model of which only the attention matters."""
    return ModelConfig(
        architecture="llama",
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_layers=NUM_LAYERS,
        num_heads=ratio * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        max_context_tokens=512,
        rope=RopeConfig(10_000.0, "default", {}),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=False,
    )


@dataclass
class GrowingSequence:
    """``kv`` holds, per layer, rotated keys and values [tokens, 2, Hkv, D] of all tokens so far."""

    pages: list[int]
    kv: list[Tensor]
    prefix_node: int = -1
    prefix_len: int = 0


@dataclass
class AttentionCase:
    """Drives one backend. ``step({0: 5, 1: 1})`` gives sequence 0 five new tokens and sequence 1 one, and compares."""

    attention: PagedAttention
    config: ModelConfig
    page_size: int
    seed: int
    sequences: dict[int, GrowingSequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(self.seed)
        self._free = np.random.default_rng(self.seed).permutation(NUM_SLOTS // self.page_size).tolist()
        self._rope = Rope(self.config)

    def share(self, reader: int, owner: int, prefix_len: int) -> None:
        """``reader`` begins with the first ``prefix_len`` tokens of ``owner``, on the same pages."""
        old = self.sequences[owner]
        kv = [layer[:prefix_len] for layer in old.kv]
        old.prefix_node, old.prefix_len = owner, prefix_len
        self.sequences[reader] = GrowingSequence(old.pages[: prefix_len // self.page_size], kv, owner, prefix_len)

    def step(self, num_new: Mapping[int, int]) -> None:
        heads = self.config.num_heads + 2 * self.config.num_kv_heads
        order = sorted(num_new, key=lambda sequence: num_new[sequence] > 1)
        plan = self._plan(order, [num_new[sequence] for sequence in order])
        self.attention.begin_step(plan)
        for layer in range(NUM_LAYERS):
            qkv = torch.randn(plan.num_tokens, heads, self.config.head_dim, generator=self._random)
            expected = self._expected(layer, qkv, plan, order)
            out = self.attention.attend(layer, qkv.clone())
            torch.testing.assert_close(out.float(), expected, atol=2e-5, rtol=2e-5)

    def _plan(self, order: list[int], counts: list[int]) -> StepPlan:
        pages = (self.config.num_kv_heads, self.config.head_dim)
        for sequence in order:
            self.sequences.setdefault(sequence, GrowingSequence([], [torch.empty(0, 2, *pages)] * NUM_LAYERS))
        chosen = [self.sequences[sequence] for sequence in order]
        contexts = [len(sequence.kv[0]) for sequence in chosen]
        lens = np.add(contexts, counts)
        for sequence, length in zip(chosen, lens.tolist(), strict=True):
            while len(sequence.pages) * self.page_size < length:
                sequence.pages.append(self._free.pop())
        none = np.empty(0, np.int32)
        return StepPlan(
            seq_ids=np.array(order),
            token_indptr=_indptr(counts),
            token_ids=np.zeros(sum(counts), np.int32),
            context_lens=np.array(contexts, np.int32),
            page_indptr=_indptr([len(sequence.pages) for sequence in chosen]),
            page_indices=np.concatenate([sequence.pages for sequence in chosen]).astype(np.int32),
            last_page_lens=((lens - 1) % self.page_size + 1).astype(np.int32),
            is_sampled=np.ones(len(order), bool),
            num_outputs=(np.array(counts) == 1).astype(np.int32),
            prefix_nodes=np.array([sequence.prefix_node for sequence in chosen], np.int32),
            prefix_lens=np.array([sequence.prefix_len for sequence in chosen], np.int32),
            finished_seq_ids=np.empty(0, np.int64),
            copy_src_pages=none,
            copy_dst_pages=none,
            copy_lens=none,
        )

    def _expected(self, layer: int, qkv: Tensor, plan: StepPlan, order: list[int]) -> Tensor:
        parts = []
        for i, sequence in enumerate(order):
            rows = qkv[plan.token_indptr[i] : plan.token_indptr[i + 1]]
            rotation = self._rope.rotation(torch.arange(len(rows)) + int(plan.context_lens[i]))
            q, k, v = rows.split((self.config.num_heads, self.config.num_kv_heads, self.config.num_kv_heads), dim=1)
            grown = torch.cat([self.sequences[sequence].kv[layer], torch.stack([rotate(k, rotation), v], dim=1)])
            self.sequences[sequence].kv[layer] = grown
            parts.append(dense_causal_attention(rotate(q, rotation), grown[:, 0], grown[:, 1]))
        return torch.cat(parts).flatten(1)


def dense_causal_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[n, Hq, D] over [t, Hkv, D]; the last query sees every key."""
    ratio = q.shape[1] // keys.shape[1]
    keys, values = (kv.double().repeat_interleave(ratio, dim=1) for kv in (keys, values))
    scores = torch.einsum("nhd,thd->nht", q.double(), keys) * q.shape[-1] ** -0.5
    is_hidden = torch.arange(len(keys)) > torch.arange(len(q))[:, None] + len(keys) - len(q)
    return torch.einsum("nht,thd->nhd", scores.masked_fill(is_hidden[:, None], -torch.inf).softmax(-1), values).float()


def _indptr(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
