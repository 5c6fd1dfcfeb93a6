"""The rates of this machine's GPU as ``blendserve calibrate`` measured them, in the user's cache; and whether there is a GPU.

Nothing here asks PyTorch, so planning does not load it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from blendserve_core.perf.hardware import HardwareSpec
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.overlap import OverlapRates
from schemas.parameters import EngineOptions

DEVICE_FILE = Path("/dev/nvidiactl")
# What the paper's engine still shows of the shorter resource's time.
ASSUMED_INTERFERENCE = 0.35


@dataclass(frozen=True, slots=True)
class CudaMeasurement:
    """Rates of one GPU, of its split, and the share of the shorter resource's time that still shows under overlap."""

    hardware: HardwareSpec
    overlap: OverlapRates
    interference: float


def runs_on_cuda(options: EngineOptions) -> bool:
    """What ``--device auto`` means here."""
    if options.device != "auto":
        return options.device == "cuda"
    return DEVICE_FILE.exists() and find_spec("flashinfer") is not None


def cuda_measurement_path(model: ModelSpec) -> Path:
    """``$XDG_CACHE_HOME/blendserve/hardware/cuda-<digest>.json``, one per shape of layers and degree of parallelism."""
    shapes = (
        model.hidden_size, model.intermediate_size, model.query_width, model.kv_width, model.head_dim, model.dtype_bytes,
        model.tensor_parallel, os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    )  # fmt: skip
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "blendserve" / "hardware" / f"cuda-{digest}.json"


def read_cuda_measurement(path: Path) -> CudaMeasurement | None:
    """None where there is no file, or one that is no measurement: go on with assumed rates."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return CudaMeasurement(HardwareSpec(**stored["spec"]), OverlapRates(**stored["overlap"]), float(stored["interference"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_cuda_measurement(path: Path, measured: CudaMeasurement) -> None:
    """Whole or not at all; ``spec`` as in ``infra/hardware``'s profiles, so that ``simulate --hardware`` reads it."""
    finite = {name: value for name, value in asdict(measured.hardware).items() if value != math.inf}
    stored = {"spec": finite, "overlap": asdict(measured.overlap), "interference": measured.interference}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(stored, indent=2), encoding="utf-8")
    temporary.replace(path)
