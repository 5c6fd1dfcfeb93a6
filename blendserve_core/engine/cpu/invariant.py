"""Linear maps that give a row the same bits whatever shares its batch.

The native linear map sums every row in one order. A matrix library chooses kernels by the number of rows, and two kernels may
sum in different orders: where one is used, it is given row counts that are a multiple of what makes its results the same on
this machine; which that is, is tried on random rows when a model is loaded. Norms, activations and attention without cascade
work row by row, in an order of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.linear import fits_native_linear
from blendserve_core.engine.cpu.native.ops import NativeOps
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.model.ops import Linear

ROW_MULTIPLES = (1, 2, 4, 16, 32, 64)
# Rounded to bfloat16, sums in another order differ in one number of a thousand or so.
MIN_COMPARED_NUMBERS, MAX_NUMBERS = 2**17, 2**24
TRIED_ROWS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 30, 32, 48, 64, 96, 100, 128, 192, 256, 320, 512, 768)


class InvariantOps(NativeOps):
    """:class:`NativeOps` whose linear maps do not depend on the batch. Raises ValueError where that cannot be had."""

    def __init__(self, kernels: NativeKernels) -> None:
        super().__init__(kernels)
        self._row_multiples: dict[tuple[tuple[int, ...], torch.dtype], int] = {}

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if fits_native_linear(self._kernels, weight):
            return super().linear(weight, bias)
        return padded(PackedOps.linear(self, weight, bias), self._row_multiple(weight.shape, weight.dtype))

    def lm_head(self, weight: Tensor) -> Linear:
        return super().lm_head(weight) if fits_native_linear(self._kernels, weight) else self.linear(weight, None)

    def _row_multiple(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Tried once for each shape."""
        if (shape, dtype) not in self._row_multiples:
            linear = PackedOps.linear(self, random_rows(shape, dtype), None)
            self._row_multiples[shape, dtype] = least_row_multiple(linear, shape[1], dtype)
        return self._row_multiples[shape, dtype]


def least_row_multiple(linear: Linear, num_inputs: int, dtype: torch.dtype) -> int:
    """Smallest multiple of rows among which every row's result is always the same."""
    num_outputs = linear(random_rows((1, num_inputs), dtype)).shape[1]
    num_compared = -(-MIN_COMPARED_NUMBERS // num_outputs)
    tried = [num_rows for num_rows in TRIED_ROWS if num_rows * num_outputs <= MAX_NUMBERS]
    rows = random_rows((tried[-1], num_inputs), dtype)
    expected = linear(rows)

    def is_same(num_rows: int) -> bool:
        starts = range(0, min(max(num_compared, num_rows), len(rows) - num_rows + 1), num_rows)
        return all(torch.equal(linear(rows[i : i + num_rows]), expected[i : i + num_rows]) for i in starts)

    differing = [num_rows for num_rows in tried if not is_same(num_rows)]
    for multiple in ROW_MULTIPLES:
        if not any(num_rows % multiple == 0 for num_rows in differing):
            return multiple
    raise ValueError(
        f"batch_invariant cannot be had here: products of {num_inputs} columns in {dtype} differ between batches of "
        f"{differing} rows and others; use float32, or leave it off"
    )


def padded(linear: Linear, multiple: int) -> Callable[[Tensor], Tensor]:
    """The same map on rows filled up to a multiple."""

    def call(x: Tensor) -> Tensor:
        num_missing = -len(x) % multiple
        return linear(F.pad(x, (0, 0, 0, num_missing)))[: len(x)] if num_missing else linear(x)

    return call


def random_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
