"""The functions of FlashInfer that this engine is made of, under FlashInfer's names and with its arguments.

They are handed around as an object, so that the whole engine also runs where there is no GPU, on functions that check what they
are given and compute in plain PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

MODULES = ("", ".activation", ".norm", ".page", ".rope", ".sampling")
INSTALL = "pip install 'blendserve[cuda]' beside a PyTorch that was built for CUDA"


class CudaUnavailableError(ValueError):
    """The CUDA engine was asked for and cannot run here."""


class AttentionWrapper(Protocol):
    """FlashInfer's BatchPrefillWithPagedKVCacheWrapper. ``plan`` comes before ``run``, which every layer calls.

    It serves prompts (causal), decodes (one query each) and shared prefixes (not causal) alike: for grouped queries the decode
    wrapper runs the same compiled module.
    """

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor, *args: Any,
        **kwargs: Any,
    ) -> None: ...  # fmt: skip

    def run(self, q: Tensor, paged_kv_cache: Tensor, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """All of them work on the current stream. Log-sum-exps are to base 2."""

    attention_wrapper: Callable[..., AttentionWrapper]
    append_paged_kv_cache: Callable[..., None]
    merge_state_in_place: Callable[..., None]
    apply_rope: Callable[..., None]
    rmsnorm: Callable[..., Tensor]
    fused_add_rmsnorm: Callable[..., None]
    silu_and_mul: Callable[..., Tensor]
    top_k_renorm_probs: Callable[..., Tensor]
    top_p_renorm_probs: Callable[..., Tensor]


def flashinfer_kernels() -> Kernels:
    """Raises CudaUnavailableError where FlashInfer is not installed or does not load."""
    # Else norms would be compiled when first used, by another compiler than the one that can do it ahead of time.
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
    try:
        flashinfer, activation, norm, page, rope, sampling = (import_module(f"flashinfer{name}") for name in MODULES)
    except (ImportError, OSError) as error:
        raise CudaUnavailableError(f"the CUDA engine needs FlashInfer, which does not load ({error}): {INSTALL}") from error
    return Kernels(
        attention_wrapper=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        append_paged_kv_cache=page.append_paged_kv_cache,
        merge_state_in_place=flashinfer.merge_state_in_place,
        apply_rope=rope.apply_rope_with_cos_sin_cache_inplace,
        rmsnorm=norm.rmsnorm,
        fused_add_rmsnorm=norm.fused_add_rmsnorm,
        silu_and_mul=activation.silu_and_mul,
        top_k_renorm_probs=sampling.top_k_renorm_probs,
        top_p_renorm_probs=sampling.top_p_renorm_probs,
    )
