"""Every kernel test runs on each instruction set that this processor has, the portable one included."""

from __future__ import annotations

import pytest

from blendserve_core.engine.cpu.native.kernels import Isa, NativeKernels
from blendserve_core.engine.cpu.native.library import NativeUnavailableError


@pytest.fixture(scope="session", params=list(Isa), ids=lambda isa: isa.name.lower())
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    try:
        return NativeKernels(num_threads=2, isa=request.param)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    except ValueError as error:
        pytest.skip(str(error))
