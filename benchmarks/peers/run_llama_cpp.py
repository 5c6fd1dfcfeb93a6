"""llama.cpp through its Python binding: one request after the other, with the KV of a prefix shared with the one before kept.

Beside the model folder it is told the GGUF file that the demo model was made from, and where its bfloat16 twin may be kept.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

from serve import Generate, Prompts, serve

BF16_FILE_TYPE = 32
CONTEXT_TOKENS = 8192


def load(_model_folder: str) -> Generate:
    from llama_cpp import Llama

    path = bf16_model(Path(sys.argv[2]), Path(sys.argv[3]))
    llm = Llama(str(path), n_ctx=CONTEXT_TOKENS, verbose=False)

    def generate(prompts: Prompts, output_lens: list[int]) -> list[int]:
        llm.reset()
        written = [islice(llm.generate(p, temp=0.0), num) for p, num in zip(prompts, output_lens, strict=True)]
        return [sum(1 for _ in tokens) for tokens in written]

    return generate


def bf16_model(gguf: Path, target: Path) -> Path:
    """The same weights as the model folder's, which came from this file, as bfloat16."""
    import llama_cpp

    if not target.exists():
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.allow_requantize = BF16_FILE_TYPE, True
        partial = target.with_suffix(".partial")
        if llama_cpp.llama_model_quantize(str(gguf).encode(), str(partial).encode(), parameters) != 0:
            raise SystemExit(f"llama.cpp cannot convert {gguf}")
        partial.rename(target)
    return target


if __name__ == "__main__":
    serve(load)
