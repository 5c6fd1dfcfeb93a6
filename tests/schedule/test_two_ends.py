import numpy as np

from blendserve_core.schedule.policies.two_ends import LEFT, RIGHT, TwoEnds


def ends(*order: int) -> TwoEnds:
    return TwoEnds(np.array(order), num_requests=10)


def take_all(waiting: TwoEnds, side: int) -> list[int]:
    taken = []
    while (request := waiting.peek(side)) is not None:
        taken.append(waiting.take(request, side))
    return taken


def test_each_side_is_taken_from_its_own_end():
    waiting = ends(3, 1, 4, 5)
    assert waiting.take(waiting.peek(LEFT), LEFT) == 3
    assert waiting.take(waiting.peek(RIGHT), RIGHT) == 5
    assert take_all(waiting, LEFT) == [1, 4]
    assert waiting.num_waiting == 0
    assert waiting.peek(RIGHT) is None


def test_what_comes_back_is_offered_first_and_only_on_its_side():
    waiting = ends(0, 1, 2, 3)
    waiting.take(3, RIGHT)
    waiting.put_back(3)
    assert waiting.num_waiting == 4
    assert waiting.peek(LEFT) == 0
    assert take_all(waiting, RIGHT) == [3, 2, 1, 0]


def test_the_newest_to_come_back_is_offered_before_older_ones():
    waiting = ends(0, 1, 2, 3)
    for request in (3, 2):
        waiting.take(request, RIGHT)
    for request in (2, 3):
        waiting.put_back(request)
    assert take_all(waiting, RIGHT) == [3, 2, 1, 0]


def test_a_side_keeps_its_own_returns_when_the_order_is_used_up():
    waiting = ends(0, 1)
    waiting.take(0, LEFT)
    waiting.take(1, RIGHT)
    waiting.put_back(0)
    assert waiting.peek(RIGHT) is None
    assert waiting.peek(LEFT) == 0


def test_more_requests_go_into_the_middle_of_those_that_wait():
    waiting = ends(0, 1, 2, 3)
    waiting.take(0, LEFT)
    waiting.take(3, RIGHT)
    waiting.add(np.array([7, 8]))
    assert waiting.num_waiting == 4
    assert take_all(waiting, LEFT) == [1, 7, 8, 2]


def test_more_requests_can_come_when_none_wait():
    waiting = ends(0)
    waiting.take(0, LEFT)
    waiting.add(np.array([4, 5]))
    assert waiting.peek(LEFT) == 4
    assert waiting.peek(RIGHT) == 5
