"""The paged KV cache of the torch reference."""

from __future__ import annotations

import logging
import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig

logger = logging.getLogger(__name__)

HUGE_PAGE_BYTES = 2 * 2**20


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system provides when it is first written, unlike ``torch.zeros``.

    It comes in pages of 2 MiB where the system has them: attention reads KV in any order, and each page's address is looked up.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError) as error:
        logger.info("the KV pool gets pages of %d bytes, no huge ones: %s", mmap.PAGESIZE, error)
    unaligned = torch.frombuffer(memory, dtype=torch.uint8)
    start = -unaligned.data_ptr() % HUGE_PAGE_BYTES
    return unaligned[start : start + num_bytes].view(dtype).view(shape)


class KVPool:
    """Keys and values of every layer, [layers, slots, Hkv, D] each; slot = page * page_size + offset.

    Every slot holds finite numbers from the start, so masked slots may be read.
    """

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype) -> None:
        self.page_size = page_size
        self._page_shape = (num_pages, page_size, config.num_kv_heads, config.head_dim)
        shape = (2, config.num_layers, num_pages * page_size, config.num_kv_heads, config.head_dim)
        self._keys, self._values = self._slots = zeros_on_demand(shape, dtype)

    def append(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v [T, Hkv, D] to ``slots`` [T]."""
        self._keys[layer].index_copy_(0, slots, k)
        self._values[layer].index_copy_(0, slots, v)

    def gather(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of keys and values of ``pages`` [B, P], as [B, P * page_size, Hkv, D] each."""
        return self._gather(self._keys[layer], pages), self._gather(self._values[layer], pages)

    def copy_pages(self, src: NDArray[np.int32], dst: NDArray[np.int32], lens: NDArray[np.int32]) -> None:
        """Copy the first ``lens`` slots of pages ``src`` to pages ``dst``, in every layer."""
        offsets = np.concatenate([np.arange(num_slots) for num_slots in lens])
        src_slots = torch.from_numpy(np.repeat(src, lens) * self.page_size + offsets)
        dst_slots = torch.from_numpy(np.repeat(dst, lens) * self.page_size + offsets)
        self._slots[:, :, dst_slots] = self._slots[:, :, src_slots]

    def _gather(self, slots: Tensor, pages: Tensor) -> Tensor:
        paged = slots.view(self._page_shape).flatten(1)
        return paged.index_select(0, pages.flatten()).view(len(pages), -1, *self._page_shape[2:])
