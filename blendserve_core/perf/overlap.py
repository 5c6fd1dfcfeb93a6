"""What a split of a GPU's multiprocessors costs the operators on either side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlapRates:
    """Slowdowns on a part of the multiprocessors, and beside another stream.

    num_sms          of the whole device
    saturating_sms   that decode attention needs to draw the whole memory bandwidth
    sharing          slowdown of both where streams share all multiprocessors

    The defaults are estimates for Hopper; ``blendserve calibrate`` measures them.
    """

    num_sms: int = 132
    saturating_sms: float = 52.0
    sharing: float = 1.5

    def gemm_slowdown(self, num_attention_sms: int) -> float:
        """Of compute-bound operators, where ``num_attention_sms`` are not theirs; 0 means that nothing is split."""
        return self.sharing if num_attention_sms == 0 else self.num_sms / (self.num_sms - num_attention_sms)

    def attention_slowdown(self, num_attention_sms: int) -> float:
        """Of decode attention on so many multiprocessors."""
        return self.sharing if num_attention_sms == 0 else max(1.0, self.saturating_sms / num_attention_sms)
