"""Which engine serves: the CPU's or CUDA's. The other one is not even imported."""

from __future__ import annotations

from pathlib import Path

from blendserve_core.engine.cpu.calibrate import measure_cpu_once
from blendserve_core.perf.cuda_measured import runs_on_cuda
from blendserve_core.perf.hardware import HardwareSpec
from blendserve_core.perf.measured import measurement_path, read_measurement
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Executor
from blendserve_core.trace import Tracer
from schemas.parameters import DtypeName, EngineOptions


def load_executor(
    model_folder: Path,
    requests: RequestTable,
    dtype: DtypeName,
    options: EngineOptions,
    rank: int = 0,
    num_engines: int = 1,
    tracer: Tracer | None = None,
) -> Executor:
    """The executor of engine ``rank`` of ``num_engines`` on this machine, as the options choose it.

    Raises ValueError for a model or a machine that cannot serve so.
    """
    if runs_on_cuda(options):
        from blendserve_core.engine.cuda.load import load_cuda_executor

        return load_cuda_executor(model_folder, requests, dtype, options, first_device=rank * options.tensor_parallel)
    check_cpu_options(dtype, options)
    from blendserve_core.engine.load import load_cpu_executor

    return load_cpu_executor(model_folder, requests, dtype, options, num_engines, tracer)


def measure_once(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> None:
    """Measure the CPUs unless that was done; a GPU is measured by ``blendserve calibrate``, when it is asked for."""
    if not runs_on_cuda(options):
        check_cpu_options(dtype, options)
        measure_cpu_once(model_folder, dtype, options)


def calibrate(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> tuple[HardwareSpec, Path]:
    """Measure the device that these options choose, again if it was measured before. Returns its rates and where they are kept.

    Raises ValueError where the device cannot serve so.
    """
    if runs_on_cuda(options):
        from blendserve_core.engine.cuda.calibrate import calibrate_cuda

        measured, path = calibrate_cuda(model_folder, dtype, options)
        return measured.hardware, path
    check_cpu_options(dtype, options)
    path = measurement_path(ModelSpec.from_config(model_folder, dtype=dtype), dtype, options)
    path.unlink(missing_ok=True)
    measure_cpu_once(model_folder, dtype, options)
    spec = read_measurement(path)
    if spec is None:
        raise ValueError(f"the measured rates cannot be kept in {path}; set XDG_CACHE_HOME to a folder that can be written to")
    return spec, path


def check_cpu_options(dtype: DtypeName, options: EngineOptions) -> None:
    """Raises ValueError for what only a GPU does."""
    if dtype == "float16":
        raise ValueError("--dtype float16 is for GPUs; use bfloat16 or float32 on a CPU")
    if options.tensor_parallel > 1 or options.kv_dtype != "auto":
        raise ValueError("--tensor-parallel and --kv-dtype are for GPUs; use --shards for several engines on CPUs")
