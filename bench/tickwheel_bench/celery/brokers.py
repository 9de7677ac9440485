"""Brokers of Celery: `tickwheel_bench.contenders`, and what Celery is told of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tickwheel_bench.contenders import Contender, RabbitMQ, Redis, Tickwheel

VISIBILITY_S: Final = 5
"""After so long Redis gives a task again that was not acked. An hour is the default: a killed worker's tasks would wait
so long."""


class Kind(NamedTuple):
    """A broker of Celery."""

    contender: type[Contender]
    open: Callable[[Path], Contender]
    options: Mapping[str, Any] = {}
    """Celery's ``broker_transport_options``."""
    killed_options: Mapping[str, Any] = {}
    """More of them where workers are killed. Elsewhere Redis would give tasks again that only wait in a worker."""


_KINDS: Final = {
    "tickwheel": Kind(Tickwheel, lambda directory: Tickwheel(directory, "--ack-wait", f"{VISIBILITY_S}s")),
    "redis": Kind(Redis, Redis, killed_options={"visibility_timeout": VISIBILITY_S}),
    "rabbitmq": Kind(RabbitMQ, RabbitMQ, options={"confirm_publish": True}),
}


def installed() -> dict[str, Kind]:
    """The brokers that this machine has."""
    return {name: kind for name, kind in _KINDS.items() if kind.contender.missing() is None}
