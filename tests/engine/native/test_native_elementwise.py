"""Rotation and append, norms and activations against plain torch in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.layout import allocate_pages, pack_pages, unpack_pages

# One unit in the last place of a bfloat16 in [2, 4), where results are rounded once.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("num_tokens", [1, 70])
def test_queries_are_rotated_and_keys_and_values_appended(
    kernels: NativeKernels, dtype: torch.dtype, head_dim: int, num_tokens: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(num_tokens, 6 + 2 * 2, head_dim, generator=generator).to(dtype)
    angles = torch.rand(num_tokens, head_dim // 2, generator=generator) * 7
    slots = np.random.default_rng(2).permutation(5 * 16 // 2)[:1].repeat(num_tokens) + np.arange(num_tokens)
    pages = allocate_pages(2, 8, 2, head_dim, dtype)
    q = torch.empty(num_tokens, 6, head_dim, dtype=dtype)
    kernels.rope_and_append(qkv, pages[1], angles.cos(), angles.sin(), slots.astype(np.int64), q)

    halves = qkv[:, :8].float().unflatten(-1, (2, -1)).unbind(-2)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    rotated = torch.cat((halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin), dim=-1)
    torch.testing.assert_close(q.float(), rotated[:, :6], atol=TOLERANCE[dtype], rtol=1e-2 if dtype == torch.bfloat16 else 0)
    keys, values = (kv.transpose(1, 2).flatten(0, 1) for kv in unpack_pages(pages[1]))  # [slots, Hkv, D]
    torch.testing.assert_close(keys[slots].float(), rotated[:, 6:], atol=TOLERANCE[dtype], rtol=1e-2)
    assert torch.equal(values[slots], qkv[:, 8:])
    untouched = np.setdiff1d(np.arange(8 * 16), slots)
    assert not keys[untouched].any()
    assert not values[untouched].any()
    assert not pages[0].any()


def test_a_token_appended_alone_keeps_its_neighbour(kernels: NativeKernels) -> None:
    pages = allocate_pages(1, 1, 1, 64, torch.bfloat16)[0]
    qkv = torch.randn(2, 3, 64).to(torch.bfloat16)
    no_turn = torch.ones(1, 32), torch.zeros(1, 32)
    for token in range(2):
        q = torch.empty(1, 1, 64, dtype=torch.bfloat16)
        kernels.rope_and_append(qkv[token, None], pages, *no_turn, np.array([6 + token]), q)
    keys, values = unpack_pages(pages)
    assert torch.equal(keys[0, 0, 6:8], qkv[:, 1])
    assert torch.equal(values[0, 0, 6:8], qkv[:, 2])


def test_the_first_slot_of_a_word_clears_what_an_earlier_sequence_left(kernels: NativeKernels) -> None:
    pages = torch.full((1, 1, 2, 16 * 64), torch.nan, dtype=torch.bfloat16)
    qkv = torch.randn(1, 3, 64).to(torch.bfloat16)
    q = torch.empty(1, 1, 64, dtype=torch.bfloat16)
    kernels.rope_and_append(qkv, pages, torch.ones(1, 32), torch.zeros(1, 32), np.array([4]), q)
    assert unpack_pages(pages)[1][0, 0, 4:6].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packing_and_unpacking_pages_are_inverse(dtype: torch.dtype) -> None:
    keys, values = torch.randn(2, 5, 3, 16, 64).to(dtype)
    pages = pack_pages(keys, values)
    assert pages.shape == (5, 3, 2, 16 * 64)
    assert all(torch.equal(a, b) for a, b in zip(unpack_pages(pages), (keys, values), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 16), (3, 576), (40, 48)])
def test_rms_norm(kernels: NativeKernels, dtype: torch.dtype, num_rows: int, dim: int) -> None:
    x, weight = torch.randn(num_rows, dim).to(dtype), torch.rand(dim).to(dtype)
    out = torch.empty_like(x)
    kernels.rms_norm(x, weight, 1e-5, out)
    expected = F.rms_norm(x.float(), (dim,), weight.float(), 1e-5)
    torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_residual_is_added_before_the_norm_and_kept(kernels: NativeKernels, dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 64).to(dtype), torch.randn(5, 64).to(dtype), torch.rand(64).to(dtype)
    total, out = x + residual, torch.empty_like(x)
    kernels.rms_norm(x, weight, 1e-5, out, residual)
    assert torch.equal(residual, total)
    expected = F.rms_norm(total.float(), (64,), weight.float(), 1e-5)
    torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_times_up_over_the_whole_range(kernels: NativeKernels, dtype: torch.dtype) -> None:
    gate = torch.linspace(-120, 120, 2 * 96).view(2, 96).to(dtype)
    up = torch.linspace(-1, 1, 2 * 96).view(2, 96).to(dtype)
    out = torch.empty(2, 96, dtype=dtype)
    kernels.silu_and_multiply(torch.cat((gate, up), dim=1), out)
    expected = F.silu(gate.float()) * up.float()
    torch.testing.assert_close(out.float(), expected, atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 2**-8)


def test_a_read_sums_every_word(kernels: NativeKernels) -> None:
    words = torch.randint(-(2**31), 2**31, (5, 128), dtype=torch.int64)
    assert kernels.sum_words(words.to(torch.int32)) == int(words.sum()) % 2**32


def test_widths_that_do_not_fill_vectors_are_refused(kernels: NativeKernels) -> None:
    with pytest.raises(ValueError, match="multiple of 16, not 24"):
        kernels.rms_norm(torch.ones(2, 24), torch.ones(24), 1e-5, torch.ones(2, 24))
    with pytest.raises(ValueError, match="head_dim 40"):
        allocate_pages(1, 1, 1, 40, torch.float32)
