"""The end of a process: consumers end before their topics, and one error keeps none of the others."""

from __future__ import annotations

from collections.abc import Iterable

from tickwheel.celery.transport.exits import Exit
from tickwheel.errors import NotConnected


class Owner:
    """A connection that writes down what is asked of it."""

    def __init__(self, done: list[tuple[str, str]], *topics: str, is_away: bool = False) -> None:
        self._done, self._topics, self._is_away = done, set(topics), is_away

    def confirm(self, within_s: float) -> None:
        self._note("confirm", ["sent"])

    def own_topics(self) -> set[str]:
        return self._topics

    def leave_topics(self, topics: Iterable[str], within_s: float) -> None:
        self._note("leave", topics)

    def delete_topics(self, topics: Iterable[str], within_s: float) -> None:
        if not self._is_away:
            self._note("delete", topics)

    def _note(self, what: str, topics: Iterable[str]) -> None:
        if self._is_away:
            raise NotConnected("It is away.")
        self._done.extend((what, topic) for topic in sorted(topics))


def test_what_is_owned_is_left_by_all_and_then_deleted() -> None:
    done: list[tuple[str, str]] = []
    owners = [Owner(done, "a"), Owner(done), Owner(done, "b", is_away=True)]
    end = Exit()
    for one in owners:
        end.opened(one)
    end.carry_out()
    assert done[:2] == [("confirm", "sent")] * 2, "before its topics go"
    assert sorted(done[2:-1]) == [("leave", "a")] * 2 + [("leave", "b")] * 2
    assert done[-1] == ("delete", "a")


def test_nothing_else_is_asked_where_nothing_is_owned_or_all_is_closed() -> None:
    done: list[tuple[str, str]] = []
    plain, closed = Owner(done), Owner(done, "a")
    end = Exit()
    end.opened(plain)
    end.opened(closed)
    end.closed(closed)
    end.carry_out()
    assert done == [("confirm", "sent")]
