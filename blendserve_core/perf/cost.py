"""Seconds of compute and of memory traffic that requests and steps take (paper section 4), vectorised over numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.hardware import HardwareSpec
from blendserve_core.perf.model_spec import ModelSpec

Engine = Literal["sequential", "overlapped"]
CASCADE_READERS = 256
"""Most requests taken to read a shared prefix together: as many as an engine runs at once, not as many as share it."""

Scalars = float | NDArray[Any]
"""A number or an array of numbers; arrays broadcast as numpy's do."""


@dataclass(frozen=True)
class CostModel:
    """Cost of one model on ``model.tensor_parallel`` devices that work as one.

    Request-level costs are marginal: what a request adds to steps that are full anyway. The constants every step pays appear
    in the step-level functions and in :mod:`blendserve_core.perf.optimum`.

    ``engine``: "sequential" runs compute and memory operators one after another, "overlapped" side by side, where the shorter
    resource's time shows with the share ``interference``. All results are seconds.

    ``cascade``: decode attention reads a prefix that running requests share once per step, not once per request.
    """

    model: ModelSpec
    hardware: HardwareSpec
    engine: Engine = "overlapped"
    interference: float = 0.15
    cascade: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("sequential", "overlapped"):
            raise ValueError(f"engine {self.engine!r} is not known; use sequential or overlapped")
        if not 0 <= self.interference <= 1:
            raise ValueError(f"interference is {self.interference}; it is a share from 0 (perfect overlap) to 1 (none)")
        if self.kv_capacity_tokens < 1:
            raise ValueError(
                f"{self.model.name} leaves no room for KV on {self.model.tensor_parallel} x {self.hardware.name}; "
                "use a higher degree of tensor parallelism"
            )

    # Coefficients, per device of the tensor-parallel group.

    @cached_property
    def gemm_token_s(self) -> float:
        """Layer GEMMs of one more token in a step, with the exposed part of its all-reduces."""
        devices = self.model.tensor_parallel
        return 2 * self.model.num_parameters / (devices * self.hardware.gemm_flops_per_s) + self._allreduce_token_s

    @cached_property
    def gemm_fixed_s(self) -> float:
        """Fixed part of a step's layer GEMMs and all-reduces."""
        return self.hardware.gemm_fixed_share * self.weights_s + self._allreduce_fixed_s

    @cached_property
    def weights_s(self) -> float:
        """Reading the layers' weights once, the floor of a step's GEMMs."""
        model = self.model
        return model.num_parameters * model.dtype_bytes / (model.tensor_parallel * self.hardware.weight_bytes_per_s)

    @cached_property
    def lm_head_token_s(self) -> float:
        return 2 * self.model.num_embedding_parameters / (self.model.tensor_parallel * self.hardware.lm_head_flops_per_s)

    @cached_property
    def lm_head_weights_s(self) -> float:
        model = self.model
        return model.num_embedding_parameters * model.dtype_bytes / (model.tensor_parallel * self.hardware.weight_bytes_per_s)

    @cached_property
    def attention_pair_s(self) -> float:
        """Prefill attention of one (query, key) pair over all heads and layers."""
        model = self.model
        flops = 4 * model.query_width * model.num_layers
        return flops / (model.tensor_parallel * self.hardware.attention_flops_per_s)

    @cached_property
    def kv_token_s(self) -> float:
        """Decode attention's read of one more token of KV. Ranks beyond the number of KV heads hold copies."""
        shards = min(self.model.tensor_parallel, self.model.num_kv_heads)
        return self.model.kv_bytes_per_token / (shards * self.hardware.kv_bytes_per_s)

    @cached_property
    def decode_fixed_s(self) -> float:
        return self.hardware.decode_layer_fixed_s * self.model.num_layers

    @cached_property
    def kv_capacity_tokens(self) -> int:
        """Tokens of KV that fit beside the weights."""
        model, hardware = self.model, self.hardware
        weights = model.num_stored_parameters * model.dtype_bytes / model.tensor_parallel
        shards = min(model.tensor_parallel, model.num_kv_heads)
        return int((hardware.memory_bytes - hardware.reserved_bytes - weights) // (model.kv_bytes_per_token / shards))

    @property
    def _exposed_communication(self) -> float:
        """Share of an all-reduce that shows: overlapped engines hide it like another operator (paper section 5.5)."""
        return 1.0 if self.engine == "sequential" else self.interference

    @property
    def _allreduce_token_s(self) -> float:
        model = self.model
        ring = 2 * (model.tensor_parallel - 1) / model.tensor_parallel
        num_bytes = 2 * model.num_layers * model.hidden_size * model.dtype_bytes * ring
        return self._exposed_communication * num_bytes / self.hardware.allreduce_bytes_per_s

    @property
    def _allreduce_fixed_s(self) -> float:
        if self.model.tensor_parallel == 1:
            return 0.0
        return self._exposed_communication * 2 * self.model.num_layers * self.hardware.allreduce_fixed_s

    # Requests, sets of requests, and tree nodes.

    def compute_s(self, num_prompt_tokens: Scalars, est_output_tokens: Scalars, num_cached_tokens: Scalars = 0) -> Any:
        """Compute of a request whose first ``num_cached_tokens`` prompt tokens come from the cache.

        A tree node's own segment is ``compute_s(end_depth, 0, start_depth)``, and a request's decodes alone
        ``compute_s(p, d, p)``; sums of both over a subtree give its cost with every shared prefix computed once.
        """
        num_new = num_prompt_tokens - num_cached_tokens + est_output_tokens
        pairs = causal_pairs(num_prompt_tokens, num_cached_tokens)
        return self.gemm_token_s * num_new + self.lm_head_token_s * est_output_tokens + self.attention_pair_s * pairs

    def memory_s(self, num_prompt_tokens: Scalars, mean_output_tokens: Scalars, second_moment: Scalars | None = None) -> Any:
        """Decode attention's KV reads of a request. ``second_moment`` is E[d^2], by default the mean's square (d is known)."""
        return self.kv_token_s * kv_reads(num_prompt_tokens, mean_output_tokens, second_moment)

    def prompt_reads(self, num_prompt_tokens: Scalars, num_shared_tokens: Scalars, num_sharing: Scalars) -> Any:
        """Prompt tokens that one decode of a request reads; what ``memory_s`` takes in place of the prompt's length.

        With cascade the first ``num_shared_tokens`` are read once for all who run together, so a request bears a part of them:
        one of the ``num_sharing`` requests that have this prefix, or of ``CASCADE_READERS``. The rest it reads in full.
        """
        if not self.cascade:
            return num_prompt_tokens
        return num_prompt_tokens - num_shared_tokens * (1 - 1 / np.clip(num_sharing, 1, CASCADE_READERS))

    # Steps.

    def step_compute_s(self, num_tokens: Scalars, num_sampled: Scalars, prefill_pairs: Scalars) -> Any:
        """Compute of steps with ``num_tokens`` new tokens, ``num_sampled`` sampled rows, and prefill attention over pairs."""
        layers = np.maximum(self.gemm_fixed_s + self.gemm_token_s * num_tokens, self.weights_s)
        lm_head = np.maximum(self.lm_head_weights_s, self.lm_head_token_s * num_sampled)
        return layers + lm_head + self.attention_pair_s * prefill_pairs

    def step_memory_s(self, kv_tokens_read: Scalars) -> Any:
        """Decode attention of steps that read ``kv_tokens_read`` tokens of KV; nothing where there are no decodes."""
        return (self.decode_fixed_s + self.kv_token_s * kv_tokens_read) * np.greater(kv_tokens_read, 0)

    def combine(self, compute_s: Scalars, memory_s: Scalars) -> Any:
        """Seconds a step (or a well-mixed workload) takes on this engine, from its two resources' own times."""
        if self.engine == "sequential":
            return compute_s + memory_s
        return np.maximum(compute_s, memory_s) + self.interference * np.minimum(compute_s, memory_s)

    @property
    def faces(self) -> tuple[tuple[float, float], ...]:
        """``combine`` is the greatest of these weighted sums of compute and memory time."""
        if self.engine == "sequential":
            return ((1.0, 1.0),)
        return (1.0, self.interference), (self.interference, 1.0)


def num_devices_for(model: ModelSpec, hardware: HardwareSpec, kv_share: float = 0.6) -> int:
    """The smallest power of two of devices whose memory is left to KV by at least ``kv_share``."""
    weights = model.num_stored_parameters * model.dtype_bytes
    degree = 1
    while hardware.memory_bytes - hardware.reserved_bytes - weights / degree < kv_share * hardware.memory_bytes:
        if hardware.memory_bytes * (1 - kv_share) <= hardware.reserved_bytes:
            raise ValueError(f"{hardware.name} reserves more memory than {1 - kv_share:.0%}; no number of devices is enough")
        degree *= 2
    return degree


def density(compute_s: Scalars, memory_s: Scalars) -> Any:
    """Compute density: above 1 compute-intensive, below 1 memory-intensive; infinite where no memory time is spent."""
    compute, memory = np.asarray(compute_s, float), np.asarray(memory_s, float)
    return np.divide(compute, memory, out=np.full(np.broadcast(compute, memory).shape, np.inf), where=memory > 0)[()]


def causal_pairs(end: Scalars, start: Scalars = 0) -> Any:
    """(query, key) pairs of prefill attention over the tokens at positions ``[start, end)``."""
    end, start = np.asarray(end, float), np.asarray(start, float)
    return (end * (end + 1) - start * (start + 1)) / 2


def kv_reads(num_prompt_tokens: Scalars, mean_output_tokens: Scalars, second_moment: Scalars | None = None) -> Any:
    """Tokens of KV that a request's decodes read: p*d + d*(d - 1)/2, in expectation where d is an estimate."""
    prompt, mean = np.asarray(num_prompt_tokens, float), np.asarray(mean_output_tokens, float)
    square = mean * mean if second_moment is None else np.asarray(second_moment, float)
    return prompt * mean + (square - mean) / 2
