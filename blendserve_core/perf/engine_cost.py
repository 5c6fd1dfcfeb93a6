"""The cost model of the engine that serves a model on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.cuda_measured import (
    ASSUMED_INTERFERENCE,
    CudaMeasurement,
    cuda_measurement_path,
    read_cuda_measurement,
    runs_on_cuda,
)
from blendserve_core.perf.hardware import cpu, h200
from blendserve_core.perf.measured import measured_cpu
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.overlap import OverlapRates
from schemas.parameters import DtypeName, EngineOptions


def engine_cost(
    model_folder: Path, dtype: DtypeName = "bfloat16", options: EngineOptions | None = None, num_engines: int = 1
) -> CostModel:
    """Cost of a model folder on the engine that these options choose on this machine.

    At the rates that were measured here, or at stated ones where nothing was measured yet. Of ``num_engines`` on the CPUs of
    one machine each has an equal part, unless the options say how many threads it gets; on GPUs each has its own.
    """
    options = options or EngineOptions()
    if runs_on_cuda(options):
        return cuda_cost(model_folder, dtype, options)
    model = ModelSpec.from_config(model_folder, dtype=dtype)
    assumed = cpu(num_cores=os.cpu_count() or 1, memory_bytes=float(psutil.virtual_memory().total))
    hardware = measured_cpu(model, dtype, options) or assumed
    if options.threads is None:
        hardware = hardware.shared_by(num_engines)
    # The CPU engine runs compute and memory operators one after another.
    return CostModel(model, hardware, engine="sequential")


def cuda_cost(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> CostModel:
    """Cost on ``options.tensor_parallel`` GPUs: an H200 where none was measured."""
    model = cuda_model(model_folder, dtype, options)
    measured = _measured(model)
    engine = "sequential" if options.overlap == "none" else "overlapped"
    return CostModel(model, measured.hardware, engine, measured.interference)


def overlap_rates(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> OverlapRates:
    """What splitting this machine's GPU costs."""
    return _measured(cuda_model(model_folder, dtype, options)).overlap


def cuda_model(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> ModelSpec:
    """A model folder as the GPUs of one engine hold it."""
    kv_dtype_bytes = 1 if options.kv_dtype == "fp8" else None
    model = ModelSpec.from_config(model_folder, dtype=dtype, tensor_parallel=options.tensor_parallel)
    return model.with_kv_dtype_bytes(kv_dtype_bytes)


def _measured(model: ModelSpec) -> CudaMeasurement:
    found = read_cuda_measurement(cuda_measurement_path(model))
    return found or CudaMeasurement(h200(), OverlapRates(), ASSUMED_INTERFERENCE)
