"""The paged KV cache on a device, in FlashInfer's NHD layout."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cuda.staging import to_device
from blendserve_core.engine.model.config import ModelConfig

FP8 = torch.float8_e4m3fn


class DeviceKVPool:
    """Keys and values of every layer: [layers, pages + 1, 2, page_size, Hkv, D].

    The page after the last serves rows that only fill up a batch. All begin as zeros, since a kernel may read, and then
    discard, what stands behind a sequence's last token.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.page_size = page_size
        self.padding_page = num_pages
        self.dtype = dtype
        shape = (config.num_layers, num_pages + 1, 2, page_size, config.num_kv_heads, config.head_dim)
        self._pages = torch.zeros(shape, dtype=dtype, device=device)

    def layer(self, index: int) -> Tensor:
        """[pages + 1, 2, page_size, Hkv, D]"""
        return self._pages[index]

    def stored(self, kv: Tensor) -> Tensor:
        """``kv`` in the pool's number format. What fp8 cannot hold becomes its largest number, not NaN."""
        if self.dtype != FP8:
            return kv
        limit = torch.finfo(FP8).max
        return kv.clamp(-limit, limit).to(FP8)

    def copy_pages(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> None:
        """Copy whole pages in every layer: slots behind the ones wanted are written before they are read."""
        if len(src) == 0:
            return
        places = to_device(np.stack([src, dst]).astype(np.int64), self._pages.device)
        # Bytes, because not every operation knows every 8-bit number format.
        raw = self._pages.view(torch.uint8)
        raw[:, places[1]] = raw[:, places[0]]
