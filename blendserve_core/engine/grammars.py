"""Structured output: only tokens that a request's format allows are sampled. Only rows that have one pay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.outputs import new_outputs
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import StepPlan

if TYPE_CHECKING:
    import xgrammar

    from blendserve_core.structured.compile import FormatCompiler


@dataclass(slots=True)
class _Text:
    """Where in its grammar a running request is, after so many of its output tokens."""

    matcher: xgrammar.GrammarMatcher
    num_tokens: int = 0

    def accept(self, token_id: int) -> bool:
        """Whether the token is allowed here."""
        self.num_tokens += 1
        return self.matcher.accept_token(token_id)


class Grammars:
    """Keeps a matcher for each running request with a format.

    A step is :meth:`follow`, :meth:`mask` on the logits that are sampled, and :meth:`advance` with what was sampled. A request
    that was retracted, or that an earlier engine began, is matched anew from the outputs that its steps feed in.
    """

    def __init__(self, requests: RequestTable, compiler: FormatCompiler) -> None:
        import xgrammar

        self._requests = requests
        self._has_format: NDArray[np.bool_] = requests.sampling.response_format >= 0
        self._compiler = compiler
        self._new_matcher = xgrammar.GrammarMatcher
        self._fill = xgrammar.BatchGrammarMatcher(compiler.num_threads).batch_fill_next_token_bitmask
        self._mask = xgrammar.apply_token_bitmask_inplace
        self._num_words = -(-compiler.vocab_size // 32)
        self._end_bits = _bits(compiler.eos_token_ids, self._num_words)
        # Where nothing is allowed and the text is not whole, which only a senseless grammar leads to, the row ends.
        self._way_out = self._end_bits if self._end_bits.any() else np.full_like(self._end_bits, -1)
        self._texts: dict[int, _Text] = {}

    def follow(self, step: StepPlan) -> None:
        """Drop the sequences that ended, then take in this step's output tokens."""
        for sequence in step.finished_seq_ids.tolist():
            self._texts.pop(sequence, None)
        for sequence, num_known, tokens in new_outputs(step, self._requests, self._has_format):
            text = self._text(sequence)
            assert num_known <= text.num_tokens, "a sequence was continued without its outputs"
            for token_id in tokens[text.num_tokens - num_known :].tolist():
                text.accept(token_id)

    def mask(self, logits: Tensor, seq_ids: NDArray[np.int64]) -> None:
        """Set the ``logits`` [N, V] float32 of tokens that a row's format does not allow to -inf, in place."""
        rows = np.flatnonzero(self._has_format[seq_ids])
        if not len(rows):
            return
        allowed = self._allowed(seq_ids[rows])
        allowed[~allowed.any(axis=1)] = self._way_out
        bits = np.zeros((len(seq_ids), self._num_words), dtype=np.int32)
        bits[rows] = allowed
        self._mask(logits, torch.from_numpy(bits).to(logits.device), vocab_size=logits.shape[1], indices=rows.tolist())

    def advance(self, seq_ids: NDArray[np.int64], token_ids: NDArray[np.int32]) -> frozenset[int]:
        """Take in the sampled tokens. Returns the requests whose text is whole: nothing, or only an end token, may follow."""
        ended, may_end = [], []
        rows = np.flatnonzero(self._has_format[seq_ids])
        for sequence, token_id in zip(seq_ids[rows].tolist(), token_ids[rows].tolist(), strict=True):
            matcher = self._texts[sequence].matcher
            if not self._texts[sequence].accept(token_id) or matcher.is_terminated():
                ended.append(sequence)
            elif matcher.is_completed():
                may_end.append(sequence)
        if may_end:
            goes_on = (self._allowed(np.array(may_end)) & ~self._end_bits).any(axis=1)
            ended += np.array(may_end)[~goes_on].tolist()
        return frozenset(ended)

    def _text(self, sequence: int) -> _Text:
        if sequence not in self._texts:
            response_format = self._requests.sampling.response_formats[self._requests.sampling.response_format[sequence]]
            self._texts[sequence] = _Text(self._new_matcher(self._compiler.compile(response_format)))
        return self._texts[sequence]

    def _allowed(self, seq_ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """[N, words] bit masks of the tokens that may come next; end tokens only where the request heeds them."""
        bits = np.zeros((len(seq_ids), self._num_words), dtype=np.int32)
        self._fill([self._texts[sequence].matcher for sequence in seq_ids.tolist()], torch.from_numpy(bits))
        bits[self._requests.sampling.ignore_eos[seq_ids]] &= ~self._end_bits
        return bits


def load_grammars(model_folder: Path, requests: RequestTable, num_threads: int) -> Grammars | None:
    """For the formats of a table; None where there is none, and then nothing is imported either."""
    if not requests.sampling.response_formats:
        return None
    from blendserve_core.structured.compile import FormatCompiler

    return Grammars(requests, FormatCompiler.load(model_folder, num_threads))


def _bits(token_ids: list[int], num_words: int) -> NDArray[np.int32]:
    """[words] bit mask of some tokens."""
    bits = np.zeros(num_words, dtype=np.uint32)
    for token_id in token_ids:
        bits[token_id // 32] |= np.uint32(1) << np.uint32(token_id % 32)
    return bits.view(np.int32)
