"""The cost model of the engine that serves a model on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import cpu
from blendserve_core.perf.model_spec import ModelSpec


def engine_cost(model_folder: Path) -> CostModel:
    """Cost of a model folder on the CPU engine, which runs compute and memory operators one after another."""
    hardware = cpu(num_cores=os.cpu_count() or 1, memory_bytes=float(psutil.virtual_memory().total))
    return CostModel(ModelSpec.from_config(model_folder), hardware, engine="sequential")
