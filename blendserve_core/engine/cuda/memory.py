"""What fits on a device: the weights, the workspace of a step as it was measured, and KV pages in the rest."""

from __future__ import annotations

import math

import torch

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.weights import EMBEDDINGS, LM_HEAD, tensor_shapes
from blendserve_core.engine.parallel.weights import is_vocabulary_cut, part_config

# Of the memory left beside weights and workspace: fragmentation, captured graphs, other processes.
KV_SHARE = 0.9
# Memory that a model must leave to KV and workspace before it is worth loading.
MIN_REST_BYTES = 2 * 2**30
GIB = 2**30
TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, size: int) -> int:
    """Of one of ``size`` ranks."""
    shapes = tensor_shapes(part_config(config, size))
    num_parameters = sum(math.prod(shape) for shape in shapes.values())
    if is_vocabulary_cut(config, size):
        num_parameters -= math.prod(shapes[LM_HEAD]) * (size - 1) // size
    elif config.tie_word_embeddings:
        # The lm_head keeps a copy of its own.
        num_parameters += math.prod(shapes[EMBEDDINGS])
    return num_parameters * dtype.itemsize


def page_bytes(config: ModelConfig, kv_dtype: torch.dtype, page_size: int) -> int:
    """Keys and values of one page over all layers; ``config`` is that of one rank."""
    return 2 * config.num_layers * config.kv_size * kv_dtype.itemsize * page_size


def check_model_fits(config: ModelConfig, dtype: torch.dtype, size: int, free_bytes: int) -> None:
    """Raises ValueError, before anything is loaded, for a model that leaves a device no room to work in."""
    needed = weight_bytes(config, dtype, size) + MIN_REST_BYTES
    if needed <= free_bytes:
        return
    fitting = [other for other in TENSOR_PARALLEL_SIZES if other > size and _fits(config, dtype, other, free_bytes)]
    way_out = f"--tensor-parallel {fitting[0]} would do" if fitting else "no --tensor-parallel that divides its heads would do"
    raise ValueError(
        f"the model does not fit: it needs {needed / GIB:.1f} GiB on each of {size} device(s), weights and "
        f"{MIN_REST_BYTES / GIB:.0f} GiB to work in, and {free_bytes / GIB:.1f} GiB are free; {way_out}"
    )


def kv_pages(free_bytes: int, workspace_bytes: int, bytes_per_page: int, most_usable_pages: int) -> int:
    """Pages of KV for the memory that is free after loading, less what a full step was seen to take."""
    rest = int((free_bytes - workspace_bytes) * KV_SHARE)
    num_pages = min(rest // bytes_per_page, most_usable_pages)
    if num_pages < 1:
        raise ValueError(
            f"no room for KV: {free_bytes / GIB:.2f} GiB are free beside the weights, a step takes {workspace_bytes / GIB:.2f} "
            f"GiB; use a smaller --max-step-tokens, a higher --tensor-parallel, or --kv-dtype fp8"
        )
    return num_pages


def _fits(config: ModelConfig, dtype: torch.dtype, size: int, free_bytes: int) -> bool:
    try:
        return weight_bytes(config, dtype, size) + MIN_REST_BYTES <= free_bytes
    except ValueError:
        return False
