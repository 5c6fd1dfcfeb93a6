"""The rates of this machine's CPU as an engine measured them, kept in the user's cache. The engine writes, planners read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blendserve_core.perf.cascade import CascadeCosts, sound_costs
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.hardware import HardwareSpec
from blendserve_core.perf.model_spec import ModelSpec
from schemas.parameters import DtypeName, EngineOptions

# Goes up when other operators are measured, or the same ones were made faster.
MEASUREMENT_VERSION = 5
# What divides or is divided by in the cost model; fixed parts may be zero.
POSITIVE_RATES = (
    "gemm_flops_per_s",
    "lm_head_flops_per_s",
    "weight_bytes_per_s",
    "attention_flops_per_s",
    "kv_bytes_per_s",
    "memory_bytes",
)


def measured_cpu(model: ModelSpec, dtype: DtypeName, options: EngineOptions) -> HardwareSpec | None:
    """What an engine with this model's shapes and these options measured here; None before the first, or if it is damaged."""
    return read_measurement(measurement_path(model, dtype, options))


def measured_cascade(model: ModelSpec, dtype: DtypeName, options: EngineOptions) -> CascadeCosts:
    """What reading a shared prefix once was measured to cost here; usual costs where it was not."""
    kept = _read_sound(measurement_path(model, dtype, options))
    costs = None if kept is None else sound_costs(kept.get("cascade"))
    return costs or CascadeCosts()


def measurement_path(model: ModelSpec, dtype: DtypeName, options: EngineOptions) -> Path:
    """``$XDG_CACHE_HOME/blendserve/hardware/cpu-<digest>.json``, one for all that changes a rate.

    Small layers run at a fraction of the rate of large ones, so the model's shapes are a part of it.
    """
    threads = options.threads or os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    machine = (MEASUREMENT_VERSION, cpu_model(), os.cpu_count(), version("torch"), dtype, str(threads), options.kernels)
    shapes = (model.num_layers, model.hidden_size, model.intermediate_size, model.query_width, model.kv_width, model.head_dim)
    digest = hashlib.sha256(repr(machine + shapes).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "blendserve" / "hardware" / f"cpu-{digest}.json"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as Linux tells it, else what Python knows of it."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else f"{platform.machine()} {platform.processor()}"


def read_measurement(path: Path) -> HardwareSpec | None:
    """None where there is no file, or one that is no measurement (half written, of another version): measure anew."""
    kept = _read_sound(path)
    return None if kept is None else HardwareSpec(**kept["spec"])


def read_spread(path: Path) -> float:
    """How far apart the repeats of a measurement were; infinity where it does not say, or there is none."""
    kept = _read_sound(path)
    return math.inf if kept is None else float(kept.get("spread", math.inf))


def _read_sound(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        spec = HardwareSpec(**kept["spec"])
        is_sound = all(0 < getattr(spec, name) < math.inf for name in POSITIVE_RATES)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kept if is_sound else None


def write_measurement(path: Path, spec: HardwareSpec, timings: CpuTimings, spread: float = 0.0) -> None:
    """Whole or not at all, whoever else writes it at the same time; in the format of ``infra/hardware``'s profiles."""
    finite = {name: value for name, value in asdict(spec).items() if value != math.inf}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    measurement = {"spec": finite, "cascade": asdict(timings.cascade_costs), "timings": asdict(timings), "spread": spread}
    temporary.write_text(json.dumps(measurement, indent=2), encoding="utf-8")
    temporary.replace(path)
