"""Tasks that wait for their time: at the broker, not in a worker.

A worker looks at nothing but whether there is an ``eta``: then it keeps the task in its memory, even if the time has
come. So the header is taken out, kept beside, and put back for the task that runs, which may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from kombu.serialization import loads

from tickwheel.celery.transport.envelope import REPLY_HEADER
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.moments import parse_moment

_OTHER_NAMES: Final = frozenset({"deliver_at", "delay", "delay_ms", "run_after"})
ETA_HEADER: Final = "tickwheel_eta"
"""Where the ETA is kept."""
_OURS: Final = (ETA_HEADER, REPLY_HEADER)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def eta_ms(eta: str | datetime, zone: tzinfo | None) -> int:
    """Epoch milliseconds, never earlier than the ETA, as a broker takes them. ``zone``: of an ETA without a zone; None:
    UTC, as a worker of Celery reads it, whatever ``timezone`` and ``enable_utc`` say. Raises BadArgument."""
    try:
        moment = eta if isinstance(eta, datetime) else parse_moment(eta)
    except (ValueError, TypeError, AttributeError):
        raise BadArgument(
            f"The ETA {eta!r} is no ISO 8601 time.", advice="Give eta= as a datetime."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone or UTC)
    # In whole numbers: a float is not exact to the microsecond, far off.
    return min(max(1, -((_EPOCH - moment) // timedelta(milliseconds=1))), MAX_TIME_MS)


def held_back(headers: Mapping[str, Any], zone: tzinfo | None) -> tuple[dict[str, Any], int | None]:
    """The headers for the broker of a message with these headers, and when it is due; None: at once. Raises
    BadArgument."""
    ours = dict(headers)
    ours.pop(ETA_HEADER, None)  # of an earlier message, whose headers a retry has copied
    eta = ours.get("eta")
    if not eta or "task" not in ours:
        return ours, None
    ours["eta"], ours[ETA_HEADER] = None, eta if isinstance(eta, str) else eta.isoformat()
    return ours, eta_ms(eta, zone)


def refuse_protocol_1(message: Mapping[str, Any]) -> None:
    """Raises BadArgument for a task of protocol 1 with an ETA, which stands in its body, where it stays unseen."""
    body = message.get("body")
    if "task" in message["headers"] or not body:
        return
    marks: tuple[Any, Any] = ("eta", "task") if isinstance(body, str) else (b"eta", b"task")
    if marks[0] not in body or marks[1] not in body:
        return
    kind = message.get("content-type")
    try:
        task = loads(body, kind, message.get("content-encoding"), accept=[kind])
    except Exception:  # what cannot be read here is no task of ours
        return
    if isinstance(task, dict) and "task" in task and task.get("eta"):
        raise BadArgument(
            f"The task {task['task']!r} has an ETA and is of task protocol 1, which Tickwheel does not hold back.",
            advice="Set task_protocol = 2, which is the default, or broker_transport_options={'eta': 'worker'}.",
        )


def refuse_other_names(message: Mapping[str, Any]) -> None:
    """Raises BadArgument for a time under a name that a client of Tickwheel has: Celery makes it a property of the
    message, which nobody reads, and the task would run at once."""
    for name in sorted(_OTHER_NAMES & (message.get("properties") or {}).keys()):
        raise BadArgument(
            f"{name} is no option of Celery's: the task would run at once.",
            advice="Use eta=, an aware datetime, or countdown=, in seconds.",
        )


def put_back(task: Any = None, **_: Any) -> None:
    """For the signal ``task_prerun``: ``self.request.eta`` is what the sender said."""
    request: Any = getattr(task, "request", None)
    eta = getattr(request, ETA_HEADER, None)
    if eta and not request.eta:
        request.eta = eta
    headers = getattr(request, "headers", None)
    if headers and any(name in headers for name in _OURS):  # what a task passes on to others
        request.headers = {name: value for name, value in headers.items() if name not in _OURS} or None
