"""Native attention against dense attention in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_case import PagedCase, dense_attention, paged_case
from torch import Tensor

from blendserve_core.engine.cpu.native.kernels import AttentionGroups, Isa, NativeKernels

LENS = [1, 2, 15, 16, 17, 63, 64, 65, 130, 333]
# bfloat16 weights of the softmax are rounded to 8 bits where the processor multiplies bfloat16 pairs.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
DTYPES = [torch.float32, torch.bfloat16]
SCALE = 0.17


def attend(kernels: NativeKernels, q: Tensor, pages: Tensor, groups: AttentionGroups) -> tuple[Tensor, Tensor]:
    out, lse = torch.full(q.shape, torch.nan), torch.full(q.shape[:2], torch.nan)
    kernels.attention(q, pages, groups, SCALE, out, lse)
    return out, lse


def random_queries(num_rows: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(num_rows, num_heads, head_dim, generator=torch.Generator().manual_seed(7)).to(dtype)


def assert_is_dense(case: PagedCase, q: Tensor, out: Tensor, lse: Tensor, rows_of, lens_of) -> None:
    for keys, values, rows, lens in zip(case.keys, case.values, rows_of, lens_of, strict=True):
        expected_out, expected_lse = dense_attention(q[rows], keys, values, lens, SCALE)
        torch.testing.assert_close(out[rows], expected_out, atol=TOLERANCE[q.dtype], rtol=0)
        torch.testing.assert_close(lse[rows], expected_lse, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("ratio", [1, 3, 4, 7, 8])
def test_decodes_of_ragged_lengths(kernels: NativeKernels, dtype: torch.dtype, head_dim: int, ratio: int) -> None:
    case = paged_case(LENS, 2, head_dim, dtype)
    q = random_queries(len(LENS), 2 * ratio, head_dim, dtype)
    rows_of, lens_of = [[row] for row in range(len(LENS))], [[length] for length in LENS]
    out, lse = attend(kernels, q, case.pages, case.groups(rows_of, lens_of))
    assert_is_dense(case, q, out, lse, rows_of, lens_of)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ratio", [1, 3, 8])
def test_chunks_are_causal_by_position(kernels: NativeKernels, dtype: torch.dtype, ratio: int) -> None:
    contexts, chunks = [0, 5, 100, 64], [33, 1, 150, 64]
    lens_of = [[context + i + 1 for i in range(chunk)] for context, chunk in zip(contexts, chunks, strict=True)]
    firsts = np.concatenate([[0], np.cumsum(chunks)]).tolist()
    rows_of = [list(range(first, first + chunk)) for first, chunk in zip(firsts, chunks, strict=False)]
    case = paged_case([lens[-1] for lens in lens_of], 2, 64, dtype)
    q = random_queries(sum(chunks), 2 * ratio, 64, dtype)
    out, lse = attend(kernels, q, case.pages, case.groups(rows_of, lens_of))
    assert_is_dense(case, q, out, lse, rows_of, lens_of)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [2, 5, 97])
def test_a_shared_prefix_and_own_parts_merge_to_the_whole(kernels: NativeKernels, dtype: torch.dtype, num_rows: int) -> None:
    prefix_len = 96
    lens = [prefix_len + 1 + 11 * row % 70 for row in range(num_rows)]
    case = paged_case(lens, 3, 64, dtype)
    for other in range(1, num_rows):  # every sequence reads the first one's prefix pages
        start, first = case.page_starts[other], case.page_starts[0]
        case.page_indices[start : start + 6] = case.page_indices[first : first + 6]
        case.keys[other][:prefix_len] = case.keys[0][:prefix_len]
        case.values[other][:prefix_len] = case.values[0][:prefix_len]
    q = random_queries(num_rows, 9, 64, dtype)
    order = np.random.default_rng(0).permutation(num_rows).astype(np.int32)
    shared = AttentionGroups(
        group_indptr=np.array([0, num_rows], dtype=np.int32),
        row_ids=order,
        kv_lens=np.full(num_rows, prefix_len, dtype=np.int32),
        page_starts=case.page_starts[:1].astype(np.int32),
        page_indices=case.page_indices,
    )
    own_lens = [[length - prefix_len] for length in lens]
    own = case.groups([[row] for row in range(num_rows)], own_lens, first_page=prefix_len // 16)
    states = [attend(kernels, q, case.pages, groups) for groups in (shared, own)]
    out, lse = torch.empty(q.shape), torch.empty(q.shape[:2])
    kernels.merge_states(*states[0], *states[1], out, lse)
    assert_is_dense(case, q, out, lse, [[row] for row in range(num_rows)], [[length] for length in lens])


def test_an_empty_state_leaves_the_other_as_it_is(kernels: NativeKernels) -> None:
    state, lse = torch.randn(3, 2, 16), torch.randn(3, 2)
    unread, nothing = torch.full((3, 2, 16), torch.nan), torch.full((3, 2), -torch.inf)
    out, out_lse = torch.empty(3, 2, 16), torch.empty(3, 2)
    kernels.merge_states(state, lse, unread, nothing, out, out_lse)
    torch.testing.assert_close(out, state, atol=0, rtol=0)
    torch.testing.assert_close(out_lse, lse, atol=1e-6, rtol=0)


def test_a_row_without_tokens_gives_zero_and_minus_infinity(kernels: NativeKernels) -> None:
    case = paged_case([20], 1, 64, torch.float32)
    out, lse = attend(kernels, random_queries(1, 3, 64, torch.float32), case.pages, case.groups([[0]], [[0]]))
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_what_lies_beyond_a_sequence_is_never_read(kernels: NativeKernels) -> None:
    case = paged_case([21, 64], 1, 64, torch.float32)
    q = random_queries(1, 1, 64, torch.float32)
    before = attend(kernels, q, case.pages, case.groups([[0], []], [[21], []]))
    case.pages[case.page_indices[1], :, 0].unflatten(-1, (64, 16))[..., 5:] = 1e30  # keys of the last page
    case.pages[case.page_indices[1], :, 1].unflatten(-1, (16, 64))[:, 5:] = torch.nan  # its values
    after = attend(kernels, q, case.pages, case.groups([[0], []], [[21], []]))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rows_that_no_group_lists_are_left_alone(kernels: NativeKernels) -> None:
    case = paged_case([40], 2, 64, torch.float32)
    out, lse = attend(kernels, random_queries(3, 2, 64, torch.float32), case.pages, case.groups([[1]], [[40]]))
    assert out[[0, 2]].isnan().all()
    assert lse[[0, 2]].isnan().all()
    assert out[1].isfinite().all()


def test_a_rows_result_depends_on_no_other_row(kernels: NativeKernels) -> None:
    case = paged_case(LENS, 2, 64, torch.bfloat16)
    q = random_queries(len(LENS), 8, 64, torch.bfloat16)
    rows_of, lens_of = [[row] for row in range(len(LENS))], [[length] for length in LENS]
    together, _ = attend(kernels, q, case.pages, case.groups(rows_of, lens_of))
    for row in range(len(LENS)):
        alone = [[r] if r == row else [] for r in range(len(LENS))]
        out, _ = attend(kernels, q, case.pages, case.groups(alone, [[LENS[r]] if r == row else [] for r in range(len(LENS))]))
        assert torch.equal(out[row], together[row])


def test_shapes_that_do_not_fit_are_refused(kernels: NativeKernels) -> None:
    case = paged_case([40], 2, 64, torch.float32)
    groups = case.groups([[0]], [[40]])
    with pytest.raises(ValueError, match="do not fit"):
        attend(kernels, random_queries(1, 3, 64, torch.float32), case.pages, groups)
    with pytest.raises(ValueError, match=r"expected torch\.bfloat16"):
        attend(kernels, random_queries(1, 4, 64, torch.bfloat16), case.pages, groups)
    with pytest.raises(ValueError, match="not contiguous"):
        attend(kernels, random_queries(1, 64, 4, torch.float32).transpose(1, 2), case.pages, groups)


def test_an_instruction_set_beyond_this_processor_is_refused(kernels: NativeKernels) -> None:
    assert NativeKernels().isa >= kernels.isa
    if NativeKernels().isa < Isa.AVX512_BF16:
        with pytest.raises(ValueError, match="this processor has no"):
            NativeKernels(isa=Isa.AVX512_BF16)
