"""On which multiprocessors a stream's blocks run. Triton comes with PyTorch for CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NUM_BLOCKS = 4096
WORK = 20_000


@triton.jit
def note_sm(out, work: tl.constexpr):
    """Each block notes its multiprocessor, and works long enough for all of them to be needed."""
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    spent = sm
    for _ in range(work):
        spent = spent * 1664525 + 1013904223
    tl.store(out + 2 * tl.program_id(0), sm)
    tl.store(out + 2 * tl.program_id(0) + 1, spent)


def sms_of(stream: torch.cuda.Stream) -> set[int]:
    """Multiprocessors that ran any of many blocks."""
    out = torch.full((NUM_BLOCKS, 2), -1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        note_sm[(NUM_BLOCKS,)](out, WORK)
    torch.cuda.synchronize()
    return set(out[:, 0].tolist())
