"""Turns: in order, and none is lost with who left."""

from __future__ import annotations

import threading

import pytest

from tickwheel_flight.turns import Left, Turns


def test_who_came_first_is_first() -> None:
    turns, order = Turns(1), []
    entered = [threading.Event() for _ in range(4)]

    def wait(number: int) -> None:
        def has_left() -> bool:
            entered[number].set()
            return False

        with turns.turn(has_left):
            order.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(4)]
    with turns.turn(lambda: False):
        for number, thread in enumerate(threads):
            thread.start()
            assert entered[number].wait(60)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3]


def test_who_left_takes_no_turn() -> None:
    turns = Turns(1)
    with turns.turn(lambda: False):
        for _ in range(3):
            with pytest.raises(Left), turns.turn(lambda: True):
                pass
    with turns.turn(lambda: True):
        pass  # it was free


def test_a_turn_is_given_back_after_an_error() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="x"), turns.turn(lambda: False):
        raise ValueError("x")
    with turns.turn(lambda: True):
        pass


def test_a_turn_that_comes_to_who_has_left_goes_on() -> None:
    turns = Turns(1)
    first = turns.turn(lambda: False)
    first.__enter__()

    def has_left() -> bool:
        first.__exit__(None, None, None)  # in the moment between the question and its answer
        return True

    with pytest.raises(Left), turns.turn(has_left):
        pass
    with turns.turn(lambda: True):
        pass  # it was free
