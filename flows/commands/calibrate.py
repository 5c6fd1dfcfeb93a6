"""``blendserve calibrate``: measure this machine for a model."""

from __future__ import annotations

import json as json_module
import time
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from blendserve_core.engine.model.folder import resolve_model
from flows.commands.options import Json
from schemas.parameters import DtypeName, EngineOptions


def calibrate(
    model: str = "demo",
    /,
    *,
    dtype: DtypeName = "bfloat16",
    engine: Annotated[EngineOptions | None, Parameter(name="*")] = None,
    json: Json = False,
) -> None:
    """Measure how fast this machine's CPUs, or its GPU, run a model's operators; planners and engines go by it from then on.

    Parameters
    ----------
    model
        Hub id or local folder. Only its shapes matter; weights are random.
    dtype
        Number format of weights and KV cache.
    """
    from blendserve_core.engine.choose import calibrate as measure  # PyTorch takes seconds to import

    started = time.perf_counter()
    spec, path = measure(resolve_model(model), dtype, engine or EngineOptions())
    if json:
        finite = {name: value for name, value in asdict(spec).items() if value != float("inf")}
        print(json_module.dumps({"spec": finite, "path": str(path)}))
        return
    print(f"{spec.name}, measured in {time.perf_counter() - started:.0f} s:")
    for name, value in asdict(spec).items():
        if name != "name":
            print(f"  {name:24} {value:.4g}")
    print(f"kept in {path}; `blendserve simulate --hardware {path}` takes it too")
