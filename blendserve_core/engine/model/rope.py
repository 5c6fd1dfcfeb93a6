"""Rotary position embeddings (Su et al., 2021) with the scaling rules that long-context models use."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig, RopeConfig


class Rotation(NamedTuple):
    """Cosines and sines of a step's positions, [T, 1, D / 2] float32, shared by all heads and layers."""

    cos: Tensor
    sin: Tensor


class Rope:
    """Turns positions into rotations. Frequencies follow transformers' ``ROPE_INIT_FUNCTIONS``."""

    def __init__(self, config: ModelConfig) -> None:
        self.inv_freq = inverse_frequencies(config.rope, config.head_dim)  # [D / 2]
        self.magnitude = yarn_magnitude(config.rope) if config.rope.rope_type == "yarn" else 1.0

    def rotation(self, positions: Tensor) -> Rotation:
        """``positions`` is [T] integer."""
        angles = positions.to(torch.float32)[:, None, None] * self.inv_freq
        return Rotation(angles.cos() * self.magnitude, angles.sin() * self.magnitude)


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the two halves of each head of ``heads`` [T, H, D], in float32, rounded once."""
    first, second = heads.float().chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, [D / 2] float32."""
    inv_freq = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.rope_type == "linear":
        return inv_freq / rope.scaling["factor"]
    if rope.rope_type == "llama3":
        return _llama3(inv_freq, rope)
    if rope.rope_type == "yarn":
        return _yarn(inv_freq, rope, head_dim)
    return inv_freq


def _llama3(inv_freq: Tensor, rope: RopeConfig) -> Tensor:
    """Slow pairs are stretched by ``factor``, fast ones kept, those between blended."""
    low, high = rope.scaling["low_freq_factor"], rope.scaling["high_freq_factor"]
    turns_in_context = rope.scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    kept = ((turns_in_context - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * inv_freq / rope.scaling["factor"] + kept * inv_freq


def _yarn(inv_freq: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """Pairs that turn fewer than beta_slow times in the trained context are stretched, more than beta_fast kept."""
    context = rope.scaling["original_max_position_embeddings"]

    def pair_turning(num_turns: float) -> float:
        return head_dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_turning(rope.scaling.get("beta_fast") or 32), pair_turning(rope.scaling.get("beta_slow") or 1)
    if rope.scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    stretched = ramp.clamp(0.0, 1.0)
    return stretched * inv_freq / rope.scaling["factor"] + (1 - stretched) * inv_freq


def yarn_magnitude(rope: RopeConfig) -> float:
    """What yarn multiplies cosines and sines by, to keep attention's temperature over a longer context."""
    if stated := rope.scaling.get("attention_factor"):
        return stated

    def magnitude(mscale: float) -> float:
        return 1.0 if rope.scaling["factor"] <= 1 else 0.1 * mscale * math.log(rope.scaling["factor"]) + 1.0

    mscale, mscale_all_dim = rope.scaling.get("mscale"), rope.scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(mscale_all_dim) if mscale and mscale_all_dim else magnitude(1.0)
