"""Where FlashInfer is installed: its functions take what the stand-in takes, under the same names and in the same places."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
from flashinfer_stand_in import StandInWrapper, stand_in_kernels

from blendserve_core.engine.cuda.kernels import CudaUnavailableError, Kernels, flashinfer_kernels


@pytest.fixture(scope="module")
def real() -> Kernels:
    try:
        return flashinfer_kernels()
    except CudaUnavailableError as error:
        pytest.skip(str(error))


def assert_taken(stand_in, real) -> None:
    ours, theirs = inspect.signature(stand_in).parameters, inspect.signature(real).parameters
    for name, parameter in ours.items():
        assert name in theirs, name
        assert parameter.default == theirs[name].default or parameter.default is not inspect.Parameter.empty, name
    positional = [name for name, parameter in ours.items() if parameter.default is inspect.Parameter.empty]
    assert list(theirs)[: len(positional)] == positional
    left_out = {name: theirs[name] for name in theirs.keys() - ours.keys()}
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    assert all(p.default is not inspect.Parameter.empty or p.kind in optional for p in left_out.values())


@pytest.mark.parametrize("name", [field.name for field in fields(Kernels) if field.name != "attention_wrapper"])
def test_functions(real: Kernels, name: str) -> None:
    assert_taken(getattr(stand_in_kernels(), name), getattr(real, name))


@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_the_attention_wrapper(real: Kernels, method: str) -> None:
    assert_taken(getattr(StandInWrapper, method), getattr(real.attention_wrapper, method))
