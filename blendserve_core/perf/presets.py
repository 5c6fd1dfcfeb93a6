"""Published models by name, for planning and simulation without their files."""

from __future__ import annotations

from collections.abc import Callable

from blendserve_core.perf.model_spec import ModelSpec


def llama_3_8b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256, False, tensor_parallel=tensor_parallel)


def llama_3_70b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec("llama-3-70b", 80, 8192, 28672, 64, 8, 128, 128256, False, tensor_parallel=tensor_parallel)


def llama_2_7b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec("llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, False, tensor_parallel=tensor_parallel)


def qwen_2_5_7b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec(
        "qwen-2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, False, tensor_parallel=tensor_parallel, has_qkv_bias=True
    )


def qwen_2_5_72b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec(
        "qwen-2.5-72b", 80, 8192, 29568, 64, 8, 128, 152064, False, tensor_parallel=tensor_parallel, has_qkv_bias=True
    )


def deepseek_67b(tensor_parallel: int = 1) -> ModelSpec:
    return ModelSpec("deepseek-67b", 95, 8192, 22016, 64, 8, 128, 102400, False, tensor_parallel=tensor_parallel)


MODELS: dict[str, Callable[[int], ModelSpec]] = {
    "llama-3-8b": llama_3_8b,
    "llama-3-70b": llama_3_70b,
    "llama-2-7b": llama_2_7b,
    "qwen-2.5-7b": qwen_2_5_7b,
    "qwen-2.5-72b": qwen_2_5_72b,
    "deepseek-67b": deepseek_67b,
}


def model_spec(name: str, tensor_parallel: int = 1) -> ModelSpec:
    """A preset by name, else the ``config.json`` of a local folder. Raises ValueError for a name that is neither."""
    if name in MODELS:
        return MODELS[name](tensor_parallel)
    try:
        return ModelSpec.from_config(name, tensor_parallel=tensor_parallel)
    except OSError as error:
        known = ", ".join(MODELS)
        raise ValueError(f"model {name!r} is neither a preset ({known}) nor a folder with a config.json") from error
