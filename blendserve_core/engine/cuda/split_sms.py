"""Lanes on a CUDA device: all on one stream, on plain streams, or on green contexts that divide the multiprocessors."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch

from blendserve_core.engine.cuda.kernels import CudaUnavailableError
from blendserve_core.engine.cuda.lanes import CudaLanes
from blendserve_core.engine.cuda.program import Lane


def one_stream(device: torch.device) -> CudaLanes:
    """No overlap: operators run one after another."""
    return CudaLanes(dict.fromkeys(Lane, torch.cuda.Stream(device)))


def plain_streams(device: torch.device) -> CudaLanes:
    """Operators of two streams share the multiprocessors as the hardware deals them out."""
    return CudaLanes({lane: torch.cuda.Stream(device) for lane in Lane})


@cache
def green_streams(device: torch.device, num_attention_sms: int) -> CudaLanes:
    """Decode attention on ``num_attention_sms`` multiprocessors, everything compute-bound on the others.

    A split lasts as long as the process, so there is one of each kind. Raises CudaUnavailableError where the driver cannot
    split the device so.
    """
    try:
        # One split, both parts used: two splits made apart may overlap.
        split = import_module("flashinfer.green_ctx").split_device_green_ctx
        (attention, gemm), resources = split(device, 1, num_attention_sms)
    except (ImportError, RuntimeError) as error:
        raise CudaUnavailableError(
            f"{device} cannot be split into {num_attention_sms} multiprocessors and the others ({error}); use --overlap none"
        ) from error
    given = int(resources[0].sm.smCount)
    if given != num_attention_sms:
        raise CudaUnavailableError(f"{device} gives {given} multiprocessors where {num_attention_sms} were asked for")
    # The sums over ranks take few multiprocessors and little time; they share the larger part.
    return CudaLanes({Lane.ATTENTION: attention, Lane.GEMM: gemm, Lane.REDUCE: torch.cuda.Stream(device)})
