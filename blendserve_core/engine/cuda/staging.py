"""Host arrays on their way to the device: pinned memory, one copy per step, and no waiting for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Word alignment of each array, so that kernels may read 16 bytes at once.
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Staged:
    """The same arrays on both sides, by name."""

    host: Mapping[str, Tensor]
    device: Mapping[str, Tensor]


class Staging:
    """int32 arrays of one step after another.

    Host memory alternates between two buffers, because a step is prepared while the copy of the one before may still run. On
    the device one buffer is enough: a copy runs in the order of its stream, after whatever read what it overwrites. It stays
    at its address as long as steps fit into ``num_words``, so arrays of the same lengths in the same order do, and CUDA
    graphs may read them. A larger step gets larger buffers.
    """

    def __init__(self, num_words: int, device: torch.device) -> None:
        self._where = device
        self._turn = 0
        self._allocate(num_words)

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> Staged:
        """Copy on the current stream. A step's arrays may be written while those of the step before are copied, not longer."""
        spans, end = _spans(arrays)
        if end > len(self._device):
            self._allocate(2 * end)
        self._turn = 1 - self._turn
        buffer = self._host[self._turn]
        for name, span in spans.items():
            buffer[span] = torch.from_numpy(np.ascontiguousarray(arrays[name]))
        self._device[:end].copy_(buffer[:end], non_blocking=True)
        return Staged(
            host={name: buffer[span] for name, span in spans.items()},
            device={name: self._device[span] for name, span in spans.items()},
        )

    def _allocate(self, num_words: int) -> None:
        is_pinned = self._where.type == "cuda"
        self._host = [torch.empty(num_words, dtype=torch.int32, pin_memory=is_pinned) for _ in range(2)]
        self._device = torch.empty(num_words, dtype=torch.int32, device=self._where)


class CopyGate:
    """Keeps pinned memory from being written anew while the copy from it has yet to run.

    A step's copies come first in it, and a step is prepared only once the one before the one before has ended; so the gate is
    found open, or opens in microseconds.
    """

    def __init__(self, device: torch.device) -> None:
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def close(self) -> None:
        """Until what the current stream was given so far is done."""
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()


def _spans(arrays: Mapping[str, NDArray[np.int32]]) -> tuple[dict[str, slice], int]:
    """Where each array stands, and where the last one ends."""
    spans: dict[str, slice] = {}
    end = 0
    for name, array in arrays.items():
        assert array.dtype == np.int32, f"{name} is {array.dtype}"
        spans[name] = slice(end, end + len(array))
        end = -(-(end + len(array)) // ALIGNMENT) * ALIGNMENT
    return spans, end


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy of a small array on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
