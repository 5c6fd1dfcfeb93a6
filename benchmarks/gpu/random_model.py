"""Models with random weights: in a folder, or straight on a device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blendserve_core.engine.cpu.calibrate import random_decoder
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import tensor_shapes

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
TINY: dict[str, Any] = LLAMA_3_8B | {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}


def random_model_folder(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """A model folder as Hugging Face writes them, in bfloat16. Norms are near one, matrices keep what passes at its size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(ModelConfig.from_dict(config)).items():
        values = torch.randn(shape, generator=generator)
        values = 1 + 0.1 * values if len(shape) == 1 else 2 * values / math.sqrt(shape[-1])
        tensors[name] = values.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def config_folder(folder: Path, config: dict[str, Any]) -> Path:
    """A folder with a config alone, for what needs no more than a model's sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def random_model(config: ModelConfig, ops: TorchOps, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A whole model with its vocabulary, made on the device."""
    with torch.device(device):
        decoder = random_decoder(config, ops, dtype)
        shape = config.vocab_size, config.hidden_size
        lm_head = ops.linear(torch.randn(shape, dtype=dtype) / math.sqrt(config.hidden_size), None)
        return replace(decoder, embeddings=torch.randn(shape, dtype=dtype), lm_head=lm_head)
