import numpy as np

from blendserve_core.schedule.policies.side import Side


def side(*order: int) -> Side:
    waiting = Side(num_requests=10)
    waiting.add(np.array(order))
    return waiting


def take_all(waiting: Side) -> list[int]:
    taken = []
    while (request := waiting.peek()) is not None:
        taken.append(waiting.take(request))
    return taken


def test_requests_are_taken_in_order():
    waiting = side(3, 1, 4)
    assert waiting.num_waiting == 3
    assert take_all(waiting) == [3, 1, 4]
    assert waiting.num_waiting == 0


def test_requests_taken_from_behind_are_skipped_later():
    waiting = side(0, 1, 2, 3, 4)
    assert waiting.ahead(2) == 2
    waiting.take(2)
    assert waiting.ahead(2) is None
    assert waiting.waiting.tolist() == [0, 1, 3, 4]
    assert take_all(waiting) == [0, 1, 3, 4]


def test_looking_ahead_ends_with_the_order():
    assert side(0, 1, 2).ahead(2) == 2
    assert side(0, 1, 2).ahead(3) is None


def test_what_comes_back_is_offered_first_and_the_newest_before_older_ones():
    waiting = side(0, 1, 2, 3)
    for request in (0, 1):
        waiting.take(request)
    for request in (0, 1):
        waiting.put_back(request)
    assert waiting.returned == (1, 0)
    assert waiting.num_waiting == 4
    assert take_all(waiting) == [1, 0, 2, 3]


def test_more_requests_go_behind_those_that_wait():
    waiting = side(0, 1, 2)
    waiting.take(0)
    waiting.take(2)
    waiting.put_back(2)
    waiting.add(np.array([7, 8]))
    assert waiting.num_waiting == 4
    assert take_all(waiting) == [2, 1, 7, 8]
