"""What the ranks that share each layer (tensor parallelism) say to one another, as an explicit object."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Backend = Literal["gloo", "nccl"]


class Group(Protocol):
    """Ranks 0..size - 1. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, which every rank gets; ``x`` may be overwritten with it."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[N, C] of every rank, side by side in rank order: [N, C * size]."""
        ...

    def broadcast(self, x: Tensor) -> Tensor:
        """``x`` of rank 0, which overwrites that of every other rank; all have the same shape."""
        ...

    def minimum(self, value: int) -> int:
        """The smallest ``value`` of any rank."""
        ...

    def leave(self) -> None:
        """Hand back what the group holds; no call may follow."""
        ...


class OneRank:
    """The group of a model that is not cut: every operation is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        return x

    def minimum(self, value: int) -> int:
        return value

    def leave(self) -> None:
        pass


class ProcessGroup:
    """Ranks in processes of their own, over gloo (CPU) or NCCL (GPUs).

    The processes meet at the file ``rendezvous``, which must not exist before the first of them comes. Raises RuntimeError
    where a rank does not come, or is lost in the middle of a call.
    """

    def __init__(self, backend: Backend, rendezvous: Path, rank: int, size: int, device: torch.device, wait_s: float) -> None:
        self.rank = rank
        self.size = size
        self._backend = backend
        self._device = device
        meeting = rendezvous.absolute().as_uri()
        timeout = timedelta(seconds=wait_s)
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=timeout)

    def all_reduce(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        dist.broadcast(x, src=0)
        return x

    def minimum(self, value: int) -> int:
        smallest = torch.tensor(value, dtype=torch.int64, device=self._device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def leave(self) -> None:
        if self._backend == "nccl":
            # Its orderly way out waits for ranks that may be lost.
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
