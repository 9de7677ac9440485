"""Ctrl-C in the middle of calls of the blocking client."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tickwheel.blocking.interruptions import shield_here


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_noted_while_lifted_and_comes_when_lowered() -> None:
    shield = shield_here()
    assert shield is not None
    shield.put_up()
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        shield.lower()
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    shield.lift()
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        shield.put_away()
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_a_call_above_another_one_that_waits_has_its_own() -> None:
    outer = shield_here()
    assert outer is not None
    outer.put_up()
    assert shield_here() is None, "the outer one notes it"
    outer.lower()
    inner = shield_here()
    assert inner is not None
    inner.put_up()
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        inner.put_away()
    outer.lift()
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        outer.put_away()


def test_there_is_none_elsewhere() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(shield_here).result() is None
    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGINT, lambda *_: None)
    assert shield_here() is None
    signal.signal(signal.SIGINT, signal.default_int_handler)
