"""What may import what: the contracts stand in pyproject.toml under tool.importlinter."""

from __future__ import annotations

import subprocess
import sys

import pytest
from importlinter.cli import lint_imports

HEAVY = ("torch", "transformers", "prefect")
LIGHT_PACKAGES = ("perf", "plan", "schedule", "kv", "sim")


def test_every_import_keeps_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_planning_scheduling_and_simulating_load_neither_torch_nor_prefect() -> None:
    script = f"""
import importlib, pkgutil, sys
for name in {LIGHT_PACKAGES!r}:
    package = importlib.import_module(f"blendserve_core.{{name}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
