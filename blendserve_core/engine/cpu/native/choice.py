"""Decides, once per engine, whether the native kernels serve a model here, and says so in the log."""

from __future__ import annotations

import logging

from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.layout import MAX_HEAD_DIM, WIDTH_MULTIPLE
from blendserve_core.engine.cpu.native.library import NativeUnavailableError
from blendserve_core.engine.model.config import ModelConfig
from schemas.parameters import KernelsName

logger = logging.getLogger(__name__)


def choose_kernels(choice: KernelsName, config: ModelConfig, num_threads: int) -> NativeKernels | None:
    """The native kernels, or None for the torch reference.

    "auto" takes torch, with a warning, where the native ones cannot be built or do not fit the model;
    "native" raises NativeUnavailableError instead.
    """
    if choice == "torch":
        logger.info("kernels: torch, as asked")
        return None
    try:
        check_shapes(config)
        kernels = NativeKernels(num_threads)
    except NativeUnavailableError as error:
        if choice == "native":
            raise
        logger.warning("kernels: torch, which is several times slower: %s", error)
        return None
    logger.info("kernels: native, %s, %d threads", kernels.isa.name, num_threads)
    return kernels


def check_shapes(config: ModelConfig) -> None:
    """Raise NativeUnavailableError for a model whose rows do not fill vectors."""
    widths = {name: getattr(config, name) for name in ("head_dim", "hidden_size", "intermediate_size")}
    if odd := {name: width for name, width in widths.items() if width % WIDTH_MULTIPLE}:
        raise NativeUnavailableError(f"the native kernels need multiples of {WIDTH_MULTIPLE}, not {odd}")
    if config.head_dim > MAX_HEAD_DIM:
        raise NativeUnavailableError(f"the native kernels need a head_dim of at most {MAX_HEAD_DIM}, not {config.head_dim}")
