"""Linear maps of which every rank holds a part."""

from __future__ import annotations

from torch import Tensor

from blendserve_core.engine.model.ops import Linear
from blendserve_core.engine.parallel.group import Group


class RowParallelLinear:
    """Each rank holds some of the input columns, so the result is the sum over the ranks.

    ``partial`` and the sum can be called apart, by an engine that runs the sum beside other operators.
    """

    def __init__(self, partial: Linear, group: Group) -> None:
        self.partial = partial
        self.group = group

    def __call__(self, x: Tensor) -> Tensor:
        return self.group.all_reduce(self.partial(x))


class GatheredLinear:
    """Each rank holds some of the outputs, and all get all of them."""

    def __init__(self, part: Linear, group: Group) -> None:
        self._part = part
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.all_gather(self._part(x))
