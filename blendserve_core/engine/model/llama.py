"""A decoder of the Llama family on a flat batch of tokens. T tokens, H hidden, Hq and Hkv heads of size D, V vocabulary.

Which sequence a token belongs to is known only to ``attend``, and how a product is computed only to ``ops`` and the linear
maps, so paging, kernels and tensor parallelism are all applied from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import Linear, TorchOps
from blendserve_core.engine.model.rope import Rope, Rotation

# attend(layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]: stores k and v, and attends over each sequence.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights. ``qkv`` and ``gate_up`` are fused; ``q_norm`` and ``k_norm`` [D] are Qwen3's."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """The whole model. ``embeddings`` is [V, H]."""

    config: ModelConfig
    ops: TorchOps
    rope: Rope
    embeddings: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    lm_head: Linear

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states [T, H], normalised, of ``token_ids`` [T] at ``positions`` [T]."""
        eps = self.config.rms_norm_eps
        rotation = self.rope.rotation(positions)
        residual = F.embedding(token_ids, self.embeddings)
        x = self.ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            x = self._attention(index, layer, x, rotation, attend)
            x, residual = self.ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down(self.ops.silu_mul(layer.gate_up(x)))
            is_last = index + 1 == len(self.layers)
            next_norm = self.final_norm if is_last else self.layers[index + 1].input_norm
            x, residual = self.ops.add_rms_norm(x, residual, next_norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] to [N, V], in the model's number format."""
        return self.lm_head(hidden)

    def _attention(self, index: int, layer: DecoderLayer, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        config = self.config
        q, k, v = layer.qkv(x).split((config.query_size, config.kv_size, config.kv_size), dim=-1)
        q = q.unflatten(-1, (config.num_heads, config.head_dim))
        k = k.unflatten(-1, (config.num_kv_heads, config.head_dim))
        v = v.unflatten(-1, (config.num_kv_heads, config.head_dim))
        if layer.q_norm is not None and layer.k_norm is not None:
            q = self.ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = self.ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = self.ops.rotate(q, rotation), self.ops.rotate(k, rotation)
        return layer.output(attend(index, q, k, v))
