"""Sampling over rows of logits. N rows, V vocabulary.

The order is vLLM's and transformers': penalties, temperature, top-k, top-p of what top-k left, min-p. A row is drawn by one
uniform number through the inverse of its cumulative distribution, so its token depends on nothing outside the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.rng import uniforms
from blendserve_core.requests import SamplingColumns
from blendserve_core.schedule.step import Logprobs

# Below this a temperature is greedy: dividing by it would overflow.
MIN_TEMPERATURE = 1e-5
MAX_LOGPROBS = 20
# Candidates are cut to one of these widths, by the row's own parameters alone, so ties fall the same way in any batch.
CANDIDATE_WIDTHS = (64, 1024, 8192)
BLOCK_SIZE = 256


@dataclass(frozen=True, slots=True)
class RowParameters:
    """Sampling parameters of N rows. ``top_k`` is 0 where all tokens are kept; ``uniform`` is the row's number in [0, 1)."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    uniform: NDArray[np.float64]

    @classmethod
    def of_sequences(
        cls, sampling: SamplingColumns, seq_ids: NDArray[np.int64], num_outputs: NDArray[np.int32], vocab_size: int
    ) -> RowParameters:
        """Parameters of the sequences ``seq_ids``, which have ``num_outputs`` tokens each so far."""
        top_k = sampling.top_k[seq_ids].astype(np.int64)
        return cls(
            temperature=sampling.temperature[seq_ids],
            top_k=np.where((top_k > 0) & (top_k < vocab_size), top_k, 0),
            top_p=sampling.top_p[seq_ids],
            min_p=sampling.min_p[seq_ids],
            uniform=uniforms(sampling.rng_key[seq_ids], num_outputs),
        )

    def rows(self, rows: NDArray[np.int64]) -> RowParameters:
        return RowParameters(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniform[rows])


def sample(logits: Tensor, parameters: RowParameters) -> NDArray[np.int32]:
    """One token per row of ``logits`` [N, V] float32. Greedy rows take the likeliest, the lowest id among equals."""
    token_ids = np.empty(len(logits), dtype=np.int32)
    is_greedy = parameters.temperature < MIN_TEMPERATURE
    is_truncated = (parameters.top_k > 0) | (parameters.top_p < 1.0)
    if is_greedy.any():
        token_ids[is_greedy] = _rows(logits, is_greedy).argmax(dim=-1).numpy()
    for is_chosen, draw in ((~is_greedy & ~is_truncated, _draw_from_all), (~is_greedy & is_truncated, _draw_truncated)):
        if is_chosen.any():
            chosen = parameters.rows(np.flatnonzero(is_chosen))
            tempered = _rows(logits, is_chosen) / torch.from_numpy(chosen.temperature)[:, None]
            token_ids[is_chosen] = draw(tempered, chosen)
    return token_ids


def logprobs_of(logits: Tensor, token_ids: NDArray[np.int32], num_top: NDArray[np.int32]) -> Logprobs | None:
    """Log-softmax of the raw ``logits`` [N, V] at the sampled tokens, and its ``num_top`` [N] likeliest; None if all are -1.

    Rows that ask for none hold nan and -1, as do the places past a row's own number.
    """
    is_wanted = num_top >= 0
    if not is_wanted.any():
        return None
    width = int(num_top.max())
    log_probs = _rows(logits, is_wanted).log_softmax(dim=-1)
    top, top_ids = log_probs.topk(min(MAX_LOGPROBS, log_probs.shape[1]), dim=-1)
    result = Logprobs(
        chosen=np.full(len(num_top), np.nan, dtype=np.float32),
        top_token_ids=np.full((len(num_top), width), -1, dtype=np.int32),
        top=np.full((len(num_top), width), np.nan, dtype=np.float32),
    )
    sampled = torch.from_numpy(token_ids[is_wanted].astype(np.int64))[:, None]
    result.chosen[is_wanted] = log_probs.gather(1, sampled)[:, 0].numpy()
    is_shown = np.arange(width) < num_top[is_wanted, None]
    result.top_token_ids[is_wanted] = np.where(is_shown, top_ids[:, :width].numpy(), -1)
    result.top[is_wanted] = np.where(is_shown, top[:, :width].numpy(), np.nan)
    return result


def _rows(tensor: Tensor, is_chosen: NDArray[np.bool_]) -> Tensor:
    return tensor if is_chosen.all() else tensor[torch.from_numpy(is_chosen)]


def _draw_from_all(logits: Tensor, parameters: RowParameters) -> NDArray[np.int64]:
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    return invert_cumulative(_cut_min_p(weights, parameters), torch.from_numpy(parameters.uniform)).numpy()


def _draw_truncated(logits: Tensor, parameters: RowParameters) -> NDArray[np.int64]:
    """Draw from the likeliest tokens, from wider cuts where a row's top-k or top-p reaches past a narrow one."""
    token_ids = np.empty(len(logits), dtype=np.int64)
    is_left = np.ones(len(logits), dtype=np.bool_)
    for width in (*CANDIDATE_WIDTHS, logits.shape[1]):
        rows = np.flatnonzero(is_left & (parameters.top_k <= width))
        if len(rows):
            drawn, is_exact = _draw_from_cut(logits[torch.from_numpy(rows)], parameters.rows(rows), width)
            token_ids[rows] = drawn
            is_left[rows] = ~is_exact
    return token_ids


def _draw_from_cut(logits: Tensor, parameters: RowParameters, width: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw from the ``width`` likeliest tokens; also says for which rows the cut held every token that counts."""
    top, top_ids = logits.topk(min(width, logits.shape[1]), dim=-1)  # [N, K], from likely to unlikely
    weights = (top - top[:, :1]).exp_()
    top_k = torch.from_numpy(parameters.top_k)[:, None]
    weights.masked_fill_((top_k > 0) & (torch.arange(weights.shape[1]) >= top_k), 0.0)
    total = torch.where(top_k > 0, weights.sum(-1, keepdim=True), (logits - top[:, :1]).exp_().sum(-1, keepdim=True))
    threshold = torch.from_numpy(parameters.top_p)[:, None].double() * total
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    # The token that crosses the threshold is kept; so the likeliest always is.
    weights.masked_fill_(cumulative - weights >= threshold, 0.0)
    chosen = invert_cumulative(_cut_min_p(weights, parameters), torch.from_numpy(parameters.uniform))
    is_whole = (top_k > 0) | (cumulative[:, -1:] >= threshold) | (width >= logits.shape[1])
    return top_ids.gather(1, chosen[:, None])[:, 0].numpy(), is_whole[:, 0].numpy()


def _cut_min_p(weights: Tensor, parameters: RowParameters) -> Tensor:
    """Drop weights under min_p; the likeliest token's weight is 1."""
    if not parameters.min_p.any():
        return weights
    return weights.masked_fill_(weights < torch.from_numpy(parameters.min_p)[:, None], 0.0)


def invert_cumulative(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index at which the cumulative ``weights`` [N, M] pass the share ``uniform`` [N] of their sum, [N] int64.

    Summed by blocks, so that a whole vocabulary need not be accumulated in float64.
    """
    blocks = F.pad(weights, (0, -weights.shape[1] % BLOCK_SIZE)).unflatten(1, (-1, BLOCK_SIZE))
    block, uniform = _invert_exactly(blocks.sum(dim=-1), uniform)
    within, _ = _invert_exactly(blocks[torch.arange(len(blocks), device=blocks.device), block], uniform)
    return block * BLOCK_SIZE + within


def _invert_exactly(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The index, and how far into that entry's share the number falls, in [0, 1): the uniform number for what it holds."""
    weights = weights.double()
    cumulative = weights.cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    # Rounding can push the target onto the sum itself; the last entry with weight is meant then.
    index = torch.minimum((cumulative <= target).sum(-1), (cumulative < cumulative[:, -1:]).sum(-1))[:, None]
    chosen = weights.gather(1, index)
    rest = (target - (cumulative.gather(1, index) - chosen)) / chosen
    return index[:, 0], rest[:, 0].clamp(0.0, 1.0 - 2.0**-53)
