"""Sharing KV memory between the two ends of a density order (paper section 5.4)."""

from __future__ import annotations

import math


def memory_split(density_left: float, density_right: float, density_root: float, memory: float) -> tuple[float, float]:
    """Split ``memory`` into (M_L, M_R) so that the blend of both sides has the root's density.

    M_L + M_R = memory and M_L * density_left + M_R * density_right = memory * density_root, in any unit of memory. Where the
    root is denser or sparser than both sides, the nearer side takes all; sides of equal density share alike. Infinite
    densities (requests that read no KV) count as very large ones. Raises ValueError for negative memory.
    """
    if memory < 0:
        raise ValueError(f"memory to split is {memory}; it must not be negative")
    left, right, root = (_finite(density) for density in (density_left, density_right, density_root))
    share = 0.5 if left == right else (root - right) / (left - right)
    left_memory = memory * min(max(share, 0.0), 1.0)
    return left_memory, memory - left_memory


def _finite(density: float) -> float:
    return 1e12 if math.isinf(density) else density
