"""The order of a step's operators: of one nano-batch, or of two whose GEMMs and decode attention overlap (NanoFlow's idea).

While decode attention of one nano-batch reads memory, the other's output projection, MLP, and next layer up to the KV append
compute. Whoever wants what another lane makes waits for it, and nothing else waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from blendserve_core.engine.cuda.attention import NanoBatchAttention
from blendserve_core.engine.cuda.program import Lane, Program, Recorder
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.model.ops import Linear
from blendserve_core.engine.parallel.linear import RowParallelLinear


class NanoBatch:
    """The activations of one nano-batch on its way through the model; each operation changes them in place of its own."""

    def __init__(self, name: str, model: Decoder, attention: NanoBatchAttention) -> None:
        self.name = name
        self.attention = attention
        self._model = model
        self._residual: Tensor
        self._q: Tensor
        self.x: Tensor

    def embed(self) -> None:
        self.x, self._residual = self._model.embed(self.attention.token_ids)

    def qkv(self, layer: int) -> None:
        """Up to the KV append; the chunks' attention, which is compute-bound, with it."""
        self._q = self.attention.append(layer, self._model.qkv(layer, self.x))
        if self.attention.has_chunks:
            self.attention.attend_chunks(layer, self._q)

    def attend_decodes(self, layer: int) -> None:
        self.attention.attend_decodes(layer, self._q)

    def project(self, layer: int) -> None:
        attended = self.attention.out[: self.attention.num_rows].flatten(1)
        self.x = _part(self._model.layers[layer].output)(attended)

    def mlp(self, layer: int) -> None:
        x, self._residual = self._model.norm_before_mlp(layer, self.x, self._residual)
        self.x = _part(self._model.layers[layer].down)(self._model.mlp_inner(layer, x))

    def norm(self, layer: int) -> None:
        self.x, self._residual = self._model.norm_after_layer(layer, self.x, self._residual)

    def sum_over_ranks(self, linear: RowParallelLinear) -> None:
        self.x = linear.group.all_reduce(self.x)


def overlapped_program(model: Decoder, nano_batches: Sequence[NanoBatch]) -> Program:
    """All layers of one nano-batch, or of two side by side."""
    recorder = Recorder()
    for place, nano in enumerate(nano_batches):
        recorder.run(Lane.GEMM, f"embed {nano.name}", nano.embed, [f"{nano.name}.tables"], _stream_of(nano))
        _before_attention(recorder, nano_batches[: place + 1], 0)
    for layer in range(len(model.layers)):
        for place, nano in enumerate(nano_batches):
            _after_attention(recorder, model, nano, layer)
            if layer + 1 < len(model.layers):
                _before_attention(recorder, nano_batches[: place + 1], layer + 1)
    return recorder.program


def _before_attention(recorder: Recorder, so_far: Sequence[NanoBatch], layer: int) -> None:
    """Of the last of ``so_far``: queries, keys and values on the GEMM lane, then decode attention on its own.

    It may read what those before it have appended in this step, and they nothing of its own (:mod:`same_step`).
    """
    nano = so_far[-1]
    name, tables = nano.name, f"{nano.name}.tables"
    kv, context = [f"{other.name}.kv.{layer}" for other in so_far], f"context.{layer}"
    out = [f"{name}.attended_chunks"] if nano.attention.has_chunks else []
    recorder.run(
        Lane.GEMM, f"qkv {name} {layer}", partial(nano.qkv, layer),
        [f"{name}.x", tables, context, *kv[:-1]], [f"{name}.q", kv[-1], *out],
    )  # fmt: skip
    if nano.attention.has_decodes:
        recorder.ordered(Lane.GEMM, Lane.ATTENTION, f"appended {name} {layer}")
        recorder.run(
            Lane.ATTENTION, f"decodes {name} {layer}", partial(nano.attend_decodes, layer),
            [f"{name}.q", tables, context, *kv], [f"{name}.attended_decodes"],
        )  # fmt: skip
        recorder.record(Lane.ATTENTION, f"attended {name} {layer}")


def _after_attention(recorder: Recorder, model: Decoder, nano: NanoBatch, layer: int) -> None:
    """The rest of the layer, once the nano-batch's attention is there."""
    name, stream = nano.name, _stream_of(nano)
    attended = [f"{name}.attended_chunks", f"{name}.attended_decodes"]
    if nano.attention.has_decodes:
        recorder.wait(Lane.GEMM, f"attended {name} {layer}")
    recorder.run(Lane.GEMM, f"project {name} {layer}", partial(nano.project, layer), attended, [f"{name}.x"])
    _sum_over_ranks(recorder, nano, model.layers[layer].output, f"projected {name} {layer}")
    recorder.run(Lane.GEMM, f"mlp {name} {layer}", partial(nano.mlp, layer), stream, stream)
    _sum_over_ranks(recorder, nano, model.layers[layer].down, f"mlp {name} {layer}")
    recorder.run(Lane.GEMM, f"norm {name} {layer}", partial(nano.norm, layer), stream, stream)


def _sum_over_ranks(recorder: Recorder, nano: NanoBatch, linear: Linear, event: str) -> None:
    """On a stream of its own, so that what the GEMM lane was given before need not wait behind it."""
    if not isinstance(linear, RowParallelLinear):
        return
    x = [f"{nano.name}.x"]
    recorder.ordered(Lane.GEMM, Lane.REDUCE, event)
    recorder.run(Lane.REDUCE, f"sum {event}", partial(nano.sum_over_ranks, linear), x, x)
    recorder.ordered(Lane.REDUCE, Lane.GEMM, f"summed {event}")


def _stream_of(nano: NanoBatch) -> list[str]:
    return [f"{nano.name}.x", f"{nano.name}.residual"]


def _part(linear: Linear) -> Linear:
    """Of a sum over ranks, this rank's part."""
    return linear.partial if isinstance(linear, RowParallelLinear) else linear


def hidden_of(nano_batches: Sequence[NanoBatch]) -> Tensor:
    """[T, H] of all nano-batches in turn, once their program is through."""
    return nano_batches[0].x if len(nano_batches) == 1 else torch.cat([nano.x for nano in nano_batches])
