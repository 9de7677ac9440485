"""``OPTIONS`` of a backend: what there is, what is right, and what else it means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from tickwheel.client.checks import shown
from tickwheel.client.columns import check_name
from tickwheel.client.options import ClientOptions
from tickwheel.client.url import default_url, parse_urls
from tickwheel.protocol.errors import TickwheelError

Via = Literal["direct", "outbox"]
LEAST_LEASE: Final = timedelta(seconds=1)
_MOST_ATTEMPTS: Final = 65_535
_NOT_OURS: Final = ("name", "auto_key", "dial", "peer")
"""Options of a client that the backend sets, or that mean nothing here."""
CLIENT_OPTIONS: Final = tuple(one for one in ClientOptions.__annotations__ if one not in _NOT_OURS)


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options of one backend.

    ``url``: the broker, as ``tickwheel.Client`` takes it; empty: ``TICKWHEEL_URL``, else this machine. ``via``:
    "direct" sends at once, "outbox" writes into the database, in the transaction that is open. ``database``: the
    alias of the database with the tables of tasks. ``prefix``: what stands before a queue's name in the name of its
    topic. ``group``: the consumer group of the workers.
    ``lease``: how long after the death of a worker its tasks come to another one; None: the broker's ``ack_wait``.
    ``longest_lease``: for how long a task may run at most and stay the worker's.
    ``attempts``: how often a task is run that raises. ``delays``: how long it waits before its second attempt, its
    third, and so on (the last one stays); empty: the topic's backoff. ``lost_workers``: how often a task may lose
    its worker before it is given up. ``prefetch``: how many tasks wait in each process besides those that run: more
    are faster if tasks are short, and wait behind each other if they are long. ``time_limit``: how long it may run
    before its process is ended; None: without a limit. ``client``: more options of ``tickwheel.Client``, such as
    ``token_file``.
    """

    url: str | list[str] = ""
    via: Via = "direct"
    database: str = "default"
    prefix: str = "django."
    group: str = "django"
    lease: timedelta | None = None
    longest_lease: timedelta = timedelta(days=1)
    attempts: int = 1
    delays: tuple[timedelta, ...] = ()
    lost_workers: int = 3
    prefetch: int = 0
    time_limit: timedelta | None = None
    client: Mapping[str, Any] = field(default_factory=dict)

    def topic_of(self, queue: str) -> str:
        """The topic of a queue, whatever its name."""
        return f"{self.prefix}{queue}"

    def delay_after(self, failures: int) -> timedelta | None:
        """How long a task waits that has failed so often; None: as long as the topic's backoff says."""
        if not self.delays:
            return None
        return self.delays[min(failures, len(self.delays)) - 1]


class Trouble(Exception):
    """An option is wrong: ``hint`` says what to do."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(f"{text} {hint}")
        self.text, self.hint = text, hint


def read_options(given: Any) -> tuple[BackendOptions, list[Trouble]]:
    """The options, and all that is wrong with them; what is wrong is as if it had not been given."""
    if not isinstance(given, Mapping):
        return BackendOptions(), [Trouble(f"OPTIONS is {shown(given)}.", "Give a dict.")]
    values: dict[str, Any] = {}
    troubles: list[Trouble] = []
    for name, value in given.items():
        try:
            if name not in _READERS:
                known = ", ".join(_READERS)
                raise Trouble(f"There is no option {shown(name)}.", f"Those of this backend are {known}.")
            values[name] = _READERS[name](value, name)
        except Trouble as trouble:
            troubles.append(trouble)
    return BackendOptions(**values), troubles


def queue_trouble(options: BackendOptions, queue: object) -> Trouble | None:
    """Why a queue cannot have a topic."""
    hint = "Names of topics have letters, digits and . _ - only, and at most 128 of them."
    if not isinstance(queue, str):
        return Trouble(f"The queue {shown(queue)} is no text.", hint)
    try:
        check_name(options.topic_of(queue))
    except (TickwheelError, ValueError) as error:
        return Trouble(f"The queue {queue!r} would have the topic {options.topic_of(queue)!r}: {error}", hint)
    return None


def seconds_or_timedelta(value: Any, name: str) -> timedelta:
    """A duration as settings have it. Raises Trouble."""
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e11:
        found = timedelta(seconds=value)
    else:
        raise Trouble(f"{name} is {shown(value)}.", "Give a timedelta, or seconds.")
    if found < timedelta(0):
        raise Trouble(f"{name} is below 0.", "Give a timedelta, or seconds.")
    return found


def _url(value: Any, name: str) -> str | list[str]:
    try:
        parse_urls(default_url() if value in (None, "") else value)
    except (TickwheelError, TypeError, ValueError) as error:
        raise Trouble(f"{name} is {shown(value)}: {error}", 'Give "tickwheel://host:port".') from None
    return value or ""


def _via(value: Any, name: str) -> Via:
    if value not in ("direct", "outbox"):
        raise Trouble(f"{name} is {shown(value)}.", 'Give "direct" or "outbox".')
    found: Via = value
    return found


def _database(value: Any, name: str) -> str:
    from django.conf import settings

    if value not in settings.DATABASES:
        raise Trouble(
            f"{name} is {shown(value)}.", f"Give one of DATABASES: {', '.join(settings.DATABASES)}."
        )
    return str(value)


def _prefix(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Trouble(f"{name} is {shown(value)}.", 'Give a text, such as "django.".')
    _name(f"{value}a", name)
    return value


def _name(value: Any, name: str) -> str:
    try:
        check_name(value, name)
    except (TickwheelError, ValueError) as error:
        raise Trouble(f"{name} is {shown(value)}: {error}", "Give another name.") from None
    return str(value)


def _lease(value: Any, name: str) -> timedelta | None:
    if value is None:
        return None
    found = seconds_or_timedelta(value, name)
    if found < LEAST_LEASE:
        raise Trouble(f"{name} is {found}.", "Give at least a second: leases are renewed while a task runs.")
    return found


def _longest_lease(value: Any, name: str) -> timedelta:
    return _lease(value, name) or BackendOptions().longest_lease


def _whole(value: Any, name: str, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MOST_ATTEMPTS:
        raise Trouble(f"{name} is {shown(value)}.", f"Give a whole number from {low} to {_MOST_ATTEMPTS:,}.")
    return value


def _attempts(value: Any, name: str) -> int:
    return _whole(value, name, 1)


def _from_0(value: Any, name: str) -> int:
    return _whole(value, name, 0)


def _delays(value: Any, name: str) -> tuple[timedelta, ...]:
    if not isinstance(value, list | tuple):
        raise Trouble(f"{name} is {shown(value)}.", "Give a list of timedeltas, or of seconds.")
    return tuple(seconds_or_timedelta(one, f"{name}[{index}]") for index, one in enumerate(value))


def _time_limit(value: Any, name: str) -> timedelta | None:
    if value is None:
        return None
    found = seconds_or_timedelta(value, name)
    if not found:
        raise Trouble(f"{name} is 0.", "Give None for no limit.")
    return found


def _client(value: Any, name: str) -> dict[str, Any]:
    known = ", ".join(CLIENT_OPTIONS)
    if not isinstance(value, Mapping):
        raise Trouble(f"{name} is {shown(value)}.", f"Give a dict of {known}.")
    unknown = [one for one in value if one not in CLIENT_OPTIONS]
    if unknown:
        raise Trouble(f"{name} has {shown(unknown[0])}.", f"Its options are {known}.")
    return dict(value)


_READERS: Final[dict[str, Any]] = {
    "url": _url,
    "via": _via,
    "database": _database,
    "prefix": _prefix,
    "group": _name,
    "lease": _lease,
    "longest_lease": _longest_lease,
    "attempts": _attempts,
    "delays": _delays,
    "lost_workers": _from_0,
    "prefetch": _from_0,
    "time_limit": _time_limit,
    "client": _client,
}
assert _READERS.keys() == {one.name for one in dataclasses.fields(BackendOptions)}
