"""The cost model of the engine that serves a model on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import cpu
from blendserve_core.perf.measured import measured_cpu
from blendserve_core.perf.model_spec import ModelSpec
from schemas.parameters import DtypeName, EngineOptions


def engine_cost(
    model_folder: Path, dtype: DtypeName = "bfloat16", options: EngineOptions | None = None, num_engines: int = 1
) -> CostModel:
    """Cost of a model folder on the CPU engine, which runs compute and memory operators one after another.

    At the rates that an engine with these options measured on this machine, or at stated ones where none has run yet. Of
    ``num_engines`` on one machine each has an equal part, unless the options say how many threads it gets.
    """
    model = ModelSpec.from_config(model_folder, dtype=dtype)
    assumed = cpu(num_cores=os.cpu_count() or 1, memory_bytes=float(psutil.virtual_memory().total))
    options = options or EngineOptions()
    hardware = measured_cpu(model, dtype, options) or assumed
    if options.threads is None:
        hardware = hardware.shared_by(num_engines)
    return CostModel(model, hardware, engine="sequential")
