"""Sampling on the device. The same rules and the same random numbers as :mod:`blendserve_core.engine.sampling`.

Truncation is FlashInfer's, without sorting; a row is then drawn by its own uniform number, so its token depends on nothing
outside the row. Greedy rows take the likeliest token.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.sampling import MIN_TEMPERATURE, RowParameters, invert_cumulative


class DeviceSampler:
    """Rows of logits [N, V] float32 to tokens [N] int32, both on the device, without waiting for it."""

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self._kernels = kernels
        self._device = device

    def sample(self, logits: Tensor, parameters: RowParameters) -> Tensor:
        token_ids = logits.argmax(dim=-1).to(torch.int32)
        rows = np.flatnonzero(parameters.temperature >= MIN_TEMPERATURE)
        if not len(rows):
            return token_ids
        if len(rows) == len(token_ids):
            return self._draw(logits, parameters)
        places = self._upload(rows)
        return token_ids.index_copy_(0, places, self._draw(logits[places], parameters.rows(rows)))

    def _draw(self, logits: Tensor, parameters: RowParameters) -> Tensor:
        probs = (logits / self._upload(parameters.temperature)[:, None]).softmax(dim=-1)
        if parameters.top_k.any():
            top_k = np.where(parameters.top_k > 0, parameters.top_k, logits.shape[1]).astype(np.int32)
            probs = self._kernels.top_k_renorm_probs(probs, self._upload(top_k))
        if (parameters.top_p < 1.0).any():
            probs = self._kernels.top_p_renorm_probs(probs, self._upload(parameters.top_p))
        if parameters.min_p.any():
            least = self._upload(parameters.min_p)[:, None] * probs.amax(dim=-1, keepdim=True)
            probs = probs.masked_fill(probs < least, 0.0)
        return invert_cumulative(probs, self._upload(parameters.uniform)).to(torch.int32)

    def _upload(self, array: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor
