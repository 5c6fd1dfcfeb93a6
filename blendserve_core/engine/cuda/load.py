"""Builds the CUDA executor for a model folder, on one device or over the ranks of a tensor-parallel group."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.kernels import CudaUnavailableError, Kernels, flashinfer_kernels
from blendserve_core.engine.cuda.rank import MAX_SEQUENCES, RankSpec, build_rank, follow
from blendserve_core.engine.cuda.sampling import CudaSampler, DeviceSampler
from blendserve_core.engine.grammars import load_grammars
from blendserve_core.engine.load import most_usable_pages
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.parallel.ranks import RankProcesses
from blendserve_core.engine.sampler import Sampler
from blendserve_core.requests import RequestTable
from schemas.parameters import DtypeName, EngineOptions


def load_cuda_executor(
    model_folder: Path,
    requests: RequestTable,
    dtype: DtypeName,
    options: EngineOptions,
    first_device: int = 0,
    kernels: Callable[[], Kernels] = flashinfer_kernels,
    is_on_gpu: bool = True,
) -> CudaExecutor:
    """Load the model and allocate its KV pool on ``options.tensor_parallel`` GPUs from ``first_device`` on.

    Raises ValueError for a machine that has no such devices, or a model that does not fit them.
    """
    if options.batch_invariant:
        raise ValueError("batch_invariant is a promise of the CPU engine; leave it off on a GPU")
    if is_on_gpu:
        check_devices(first_device + options.tensor_parallel, dtype)
    config = ModelConfig.from_folder(model_folder)
    max_sequences = options.max_sequences or MAX_SEQUENCES
    usable = most_usable_pages(requests, max_sequences, config.max_context_tokens)
    rendezvous = Path(tempfile.mkdtemp(prefix="blendserve-group-")) / "meet"
    spec = RankSpec(model_folder, dtype, options, usable, rendezvous, kernels, is_on_gpu, first_device)
    size = options.tensor_parallel
    followers = RankProcesses(size, partial(follow, spec), spec.group_name) if size > 1 else None
    try:
        rank = build_rank(spec, 0)
    except BaseException:
        if followers is not None:
            followers.close()
        raise
    grammars = load_grammars(model_folder, requests, torch.get_num_threads())
    sampler = CudaSampler(Sampler(requests, grammars), DeviceSampler(kernels()), requests)
    return CudaExecutor(rank.model, rank.runner, sampler, rank.capacity, followers, rank.group)


def check_devices(num_devices: int, dtype: DtypeName) -> None:
    """Raises CudaUnavailableError where PyTorch does not see so many GPUs."""
    if not torch.cuda.is_available():
        raise CudaUnavailableError(f"PyTorch {torch.__version__} sees no CUDA device here; use --device cpu")
    if torch.cuda.device_count() < num_devices:
        raise CudaUnavailableError(
            f"{num_devices} GPUs are needed (--shards times --tensor-parallel), and {torch.cuda.device_count()} are visible"
        )
    if dtype == "float32":
        raise CudaUnavailableError("FlashInfer's kernels compute in 16 bits; use --dtype bfloat16 or float16 on a GPU")
