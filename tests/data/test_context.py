import numpy as np

from blendserve_core.data.context import fit_context

LENS = np.array([3, 12, 0, 10, 9])
TOKENS = np.concatenate([np.arange(length, dtype=np.int32) for length in LENS])


def fit(how, max_tokens):
    lens, token_ids, errors = fit_context(LENS, TOKENS, np.full(5, max_tokens), 10, how)
    return lens.tolist(), [part.tolist() for part in np.split(token_ids, np.cumsum(lens)[:-1])], sorted(errors)


def test_prompts_that_leave_no_room_for_a_token_are_errors():
    lens, prompts, errors = fit("error", 4)
    assert (lens, errors) == ([3, 0, 0, 0, 9], [1, 3])
    assert prompts == [[0, 1, 2], [], [], [], list(range(9))]


def test_a_cut_prompt_leaves_room_for_the_tokens_asked_for():
    lens, prompts, errors = fit("truncate-right", 4)
    assert (lens, errors) == ([3, 6, 0, 6, 9], [])
    assert prompts[1] == [0, 1, 2, 3, 4, 5]
    assert fit("truncate-left", 4)[1][1] == [6, 7, 8, 9, 10, 11]


def test_a_cut_prompt_keeps_half_of_the_context_whatever_is_asked_for():
    assert fit("truncate-left", 1000)[0] == [3, 5, 0, 5, 9]
