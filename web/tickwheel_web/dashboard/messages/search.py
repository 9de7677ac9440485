"""Which messages a list shows: fields of an address, or a line such as ``topic:orders state:dead due:<1h``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from tickwheel.protocol.message_states import STATES
from tickwheel.protocol.moments import parse_moment
from tickwheel.protocol.units import parse_duration_ms
from tickwheel_web.problems import Refused

_NAMES: Final = ("topic", "key", "id", "state", "group", "due")
_HELP: Final = "Write for example topic:orders state:dead due:<1h key:order-17 group:billing id:1042."


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Of an address, and of a form that changes what it means: a line, or the same as fields."""

    q: str = ""
    topic: str = ""
    key: str = ""
    id: str = ""
    state: str = ""
    """One, or several with commas."""
    group: str = ""
    due_from: str = ""
    due_until: str = ""
    after: str = ""
    """An id, or a time and an id: behind it."""
    order: Literal["", "id"] = ""
    """Empty: the soonest first."""


class Wanted(msgspec.Struct, frozen=True):
    """What was asked for, read."""

    topic: str = ""
    key: str = ""
    id: int | None = None
    states: tuple[str, ...] = ()
    group: str = ""
    due_from: datetime | None = None
    due_until: datetime | None = None

    @property
    def where(self) -> dict[str, Any]:
        """As the client takes it."""
        found = {
            "states": list(self.states),
            "group": self.group,
            "due_from": self.due_from,
            "due_until": self.due_until,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def fields(self) -> dict[str, str]:
        """As an address and hidden fields of a form have it: times are absolute."""
        found = {
            "topic": self.topic,
            "key": self.key,
            "id": "" if self.id is None else str(self.id),
            "state": ",".join(self.states),
            "group": self.group,
            "due_from": _iso(self.due_from),
            "due_until": _iso(self.due_until),
        }
        return {name: value for name, value in found.items() if value}

    @property
    def line(self) -> str:
        """As it is written into the search field.

        >>> Wanted(topic="orders", key="a b", states=("dead",)).line
        "topic:orders key:'a b' state:dead"
        """
        words = {name: value for name, value in self.fields.items() if not name.startswith("due_")}
        found = [f"{name}:{shlex.quote(value)}" for name, value in words.items()]
        if self.due_from is not None:
            found.append(f"due:>{_iso(self.due_from)}")
        if self.due_until is not None:
            found.append(f"due:<{_iso(self.due_until)}")
        return " ".join(found)

    @property
    def options(self) -> list[str]:
        """Of a command."""
        found = [word for state in self.states for word in ("--state", state)]
        for name in ("group", "due_from", "due_until"):
            if value := self.fields.get(name):
                found += [f"--{name.replace('_', '-')}", value]
        return found

    def address(self, path: str = "/messages", **more: str) -> str:
        """Of the list."""
        return f"{path}?{urlencode({**self.fields, **more})}"


def read(asked: Asked, now: datetime) -> Wanted:
    """Raises Refused (400).

    >>> now = datetime(2031, 5, 1, tzinfo=UTC)
    >>> read(Asked(q="topic:orders state:dead,acked due:<1h"), now).options
    ['--state', 'dead', '--state', 'acked', '--due-until', '2031-05-01T01:00:00Z']
    >>> read(Asked(q="1042"), now).id
    1042
    """
    fields = {
        name: getattr(asked, name) for name in Asked.__struct_fields__ if name not in ("q", "after", "order")
    }
    return _read({**fields, **_words(asked.q)}, now)


def _words(line: str) -> dict[str, str]:
    """What the line says. A word without a name is an id if it is a number, and else a key."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise _wrong("a quotation mark is not closed") from None
    found: dict[str, str] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or name not in _NAMES:
            if colon and name.isidentifier() and name.islower() and "key" in found:
                raise _wrong(f"there is no {name!r}")
            name, value = ("id" if word.isdecimal() else "key"), word
        if name == "due":
            name, value = _due(value)
        if found.setdefault(name, value) != value:
            raise _wrong(f"{name} is there twice")
    return found


def _due(value: str) -> tuple[str, str]:
    if not value.startswith(("<", ">")):
        raise _wrong("due: wants < or >, such as due:<1h or due:>2031-05-01T09:00Z")
    return "due_until" if value[0] == "<" else "due_from", value[1:].removeprefix("=")


def _read(fields: Mapping[str, str], now: datetime) -> Wanted:
    states = tuple(dict.fromkeys(state for state in fields["state"].split(",") if state))
    if wrong := set(states).difference(STATES):
        raise _wrong(f"{min(wrong)!r} is no state; there are {', '.join(STATES)}")
    number = fields["id"]
    if number and not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise _wrong(f"{number!r} is no id, which is a number")
    wanted = Wanted(
        topic=fields["topic"],
        key=fields["key"],
        id=int(number) if number else None,
        states=states,
        group=fields["group"],
        due_from=moment_of(fields["due_from"], now),
        due_until=moment_of(fields["due_until"], now),
    )
    if wanted.key and wanted.where:
        raise _wrong("a key means one message, so it stands alone with its topic")
    return wanted


def moment_of(text: str, now: datetime) -> datetime | None:
    """A moment with its offset, or how far it is from now: ``1h``, ``-1h``, ``now``. Raises Refused (400)."""
    if not text:
        return None
    if text == "now":
        return now
    try:
        far = timedelta(milliseconds=parse_duration_ms(text.lstrip("+-")))
        return now - far if text.startswith("-") else now + far
    except (ValueError, OverflowError):
        pass
    try:
        found = parse_moment(text)
    except ValueError:
        raise _wrong(f"{text!r} is no time") from None
    if found.tzinfo is None:
        raise _wrong(f"{text!r} has no offset from UTC, such as Z or +02:00")
    return found


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _wrong(what: str) -> Refused:
    return Refused(400, "bad_argument", f"This cannot be searched for: {what}. {_HELP}")
