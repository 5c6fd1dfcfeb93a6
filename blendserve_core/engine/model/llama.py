"""A decoder of the Llama family on a flat batch of tokens. T tokens, H hidden, Hq and Hkv heads of size D, V vocabulary.

Which sequence and position a token has is known only to ``attend``, and how a product is computed only to ``ops`` and the
linear maps, so paging, kernels and tensor parallelism are all applied from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import Linear, TorchOps

# attend(layer, qkv [T, Hq + 2 * Hkv, D]) -> [T, Hq * D]: rotates queries and keys, keeps keys and values, and attends over
# each sequence.
Attend = Callable[[int, Tensor], Tensor]


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
    embeddings: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    lm_head: Linear

    def forward(self, token_ids: Tensor, attend: Attend) -> Tensor:
        """Final hidden states [T, H], normalised, of ``token_ids`` [T].

        An engine that runs the operators of several batches side by side calls the same pieces in an order of its own.
        """
        x, residual = self.embed(token_ids)
        for index, layer in enumerate(self.layers):
            x = layer.output(attend(index, self.qkv(index, x)))
            x, residual = self.norm_before_mlp(index, x, residual)
            x = layer.down(self.mlp_inner(index, x))
            x, residual = self.norm_after_layer(index, x, residual)
        return x

    def embed(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's input, normalised, and the residual stream, [T, H] each."""
        residual = F.embedding(token_ids, self.embeddings)
        return self.ops.rms_norm(residual, self.layers[0].input_norm, self.config.rms_norm_eps), residual

    def qkv(self, index: int, x: Tensor) -> Tensor:
        """Queries, keys and values of every head, [T, Hq + 2 * Hkv, D], before rotation."""
        config, layer = self.config, self.layers[index]
        qkv = layer.qkv(x).unflatten(-1, (config.num_heads + 2 * config.num_kv_heads, config.head_dim))
        if layer.q_norm is None or layer.k_norm is None:
            return qkv
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        q = self.ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
        k = self.ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        return torch.cat((q, k, v), dim=1)

    def norm_before_mlp(self, index: int, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Attention's output added to the residual stream: the sum normalised, and the sum."""
        return self.ops.add_rms_norm(x, residual, self.layers[index].mlp_norm, self.config.rms_norm_eps)

    def mlp_inner(self, index: int, x: Tensor) -> Tensor:
        """[T, H] to the input of ``down``, [T, intermediate]."""
        return self.ops.silu_mul(self.layers[index].gate_up(x))

    def norm_after_layer(self, index: int, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The MLP's output added to the residual stream, and normalised for the next layer, or for the end."""
        is_last = index + 1 == len(self.layers)
        next_norm = self.final_norm if is_last else self.layers[index + 1].input_norm
        return self.ops.add_rms_norm(x, residual, next_norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] to [N, V], in the model's number format or float32."""
        return self.lm_head(hidden)
