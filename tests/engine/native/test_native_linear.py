"""Linear maps on each instruction set that this processor has, the portable one included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from blendserve_core.engine.cpu.native import linear
from blendserve_core.engine.cpu.native.kernels import Isa, NativeKernels
from blendserve_core.engine.cpu.native.library import NativeUnavailableError
from blendserve_core.engine.cpu.native.linear import NativeLinear, fits_native_linear

NUM_INPUTS, NUM_OUTPUTS = 96, 192


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(NUM_OUTPUTS, NUM_INPUTS, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    return torch.randn(40, NUM_INPUTS, generator=torch.Generator().manual_seed(2)).bfloat16()


@pytest.fixture(scope="module", params=list(Isa), ids=lambda isa: isa.name.lower())
def isa(request: pytest.FixtureRequest) -> Isa:
    native_kernels(request.param, 1)
    return request.param


def native_kernels(isa: Isa, num_threads: int) -> NativeKernels:
    try:
        return NativeKernels(num_threads, isa)
    except (NativeUnavailableError, ValueError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 6, 7, 13, 40])
def test_it_is_a_linear_map_rounded_once(
    weight: torch.Tensor, rows: torch.Tensor, isa: Isa, num_rows: int, has_bias: bool, num_threads: int
) -> None:
    bias = torch.randn(NUM_OUTPUTS, generator=torch.Generator().manual_seed(3)).bfloat16() if has_bias else None
    exact = F.linear(rows[:num_rows].double(), weight.double(), None if bias is None else bias.double())
    kernels = native_kernels(isa, num_threads)
    rounded = NativeLinear(kernels, weight, bias)(rows[:num_rows])
    summed = NativeLinear(kernels, weight, bias, torch.float32)(rows[:num_rows])
    torch.testing.assert_close(summed.double(), exact, atol=1e-4, rtol=1e-4)
    assert torch.equal(rounded, summed.bfloat16())


def test_a_rows_result_does_not_depend_on_its_batch(weight: torch.Tensor, rows: torch.Tensor, isa: Isa) -> None:
    product = NativeLinear(native_kernels(isa, 2), weight, None)
    alone = torch.cat([product(rows[i : i + 1]) for i in range(len(rows))])
    assert torch.equal(product(rows), alone)


def test_rows_of_another_width_or_number_format_are_refused(weight: torch.Tensor, rows: torch.Tensor, isa: Isa) -> None:
    product = NativeLinear(native_kernels(isa, 1), weight, None)
    for wrong in (rows[:, :-2], rows.float()):
        with pytest.raises(ValueError, match=f"bfloat16 rows of {NUM_INPUTS}"):
            product(wrong)


@pytest.fixture
def onednn_knows_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "is_packable", lambda _dtype: True)


def test_where_onednn_knows_no_bfloat16_any_instruction_set_serves(weight: torch.Tensor, isa: Isa, monkeypatch) -> None:
    monkeypatch.setattr(linear, "is_packable", lambda dtype: dtype == torch.float32)
    kernels = native_kernels(isa, 1)
    assert fits_native_linear(kernels, weight)
    assert not fits_native_linear(kernels, weight[:-1])
    assert not fits_native_linear(kernels, weight.float())


@pytest.mark.usefixtures("onednn_knows_bfloat16")
def test_where_onednn_knows_bfloat16_it_serves_what_this_kernel_is_no_faster_at(weight: torch.Tensor, isa: Isa) -> None:
    kernels = native_kernels(isa, 1)
    kernels.has_matrix_unit = False
    assert fits_native_linear(kernels, weight) == (isa is Isa.AVX512_BF16)
    kernels.has_matrix_unit = True
    assert not fits_native_linear(kernels, weight)
