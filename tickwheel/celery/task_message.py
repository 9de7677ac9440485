"""What a task message must be so that a worker can take it: the types of its headers, and the shape of its body.

Celery believes what it is sent: a time limit that is no pair, or a stamp that is a list, ends the worker that is given
it, and then the next one. So a worker's transport looks first, and what is wrong becomes a dead letter with a reason.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from kombu.compression import get_decoder

from tickwheel.celery.eta import ETA_HEADER
from tickwheel.celery.transport.envelope import REPLY_HEADER

_SHOWN_CHARS: Final = 200


class _Rule(NamedTuple):
    """Of one header."""

    words: str
    holds: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return value is None or isinstance(value, int)


def _is_moment(value: Any) -> bool:
    return value is None or isinstance(value, datetime) or (isinstance(value, str) and bool(value))


def _are_limits(value: Any) -> bool:
    return not value or (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(one is None or isinstance(one, int | float) for one in value)
    )


def _are_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value))


def _is_mapping(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _are_signatures(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(isinstance(one, dict) for one in value))


_TEXT: Final = _Rule("text", _is_text)
_WHOLE: Final = _Rule("a whole number", _is_whole)
_MOMENT: Final = _Rule("an ISO 8601 time", _is_moment)
_MAPPING: Final = _Rule("an object", _is_mapping)
_SIGNATURES: Final = _Rule("a list of signatures", _are_signatures)
_HEADERS: Final = {
    **dict.fromkeys(
        (
            ETA_HEADER,
            REPLY_HEADER,
            "argsrepr",
            "group",
            "kwargsrepr",
            "lang",
            "origin",
            "parent_id",
            "root_id",
            "shadow",
        ),
        _TEXT,
    ),
    **dict.fromkeys(("group_index", "replaced_task_nesting", "retries"), _WHOLE),
    **dict.fromkeys(("eta", "expires"), _MOMENT),
    "timelimit": _Rule("a pair of seconds", _are_limits),
    "stamped_headers": _Rule("a list of text", _are_texts),
    "stamps": _MAPPING,
}
_EMBEDDED: Final = {
    "callbacks": _SIGNATURES,
    "errbacks": _SIGNATURES,
    "chain": _SIGNATURES,
    "chord": _MAPPING,
}


def fault_of_message(raw: Mapping[str, Any]) -> str:
    """What is wrong with a message, as `envelope.decode` has it, before its body is read; empty: nothing, or it is no
    task."""
    headers, properties = raw["headers"], raw["properties"]
    if "task" not in headers:
        return ""
    return (
        _fault(headers, _HEADERS, "header")
        or _fault(properties, {"correlation_id": _TEXT, "reply_to": _TEXT}, "property")
        or _fault_of_encoding(
            headers.get("compression"), raw.get("content-encoding"), raw.get("content-type")
        )
    )


def fault_of_payload(headers: Mapping[str, Any], payload: Any) -> str:
    """What is wrong with the body of a task, which was decoded; empty: nothing, or it is no task."""
    if "task" not in headers:
        return _fault_of_mapping(payload) if isinstance(payload, dict) and "task" in payload else ""
    if isinstance(payload, dict) and "args" in payload:  # what older clients send
        return _fault_of_call(payload["args"], payload.get("kwargs", {}), payload)
    if not isinstance(payload, list | tuple) or len(payload) != 3:
        return f"its body is {_shown(payload)}, and not [arguments, keyword arguments, what it embeds]"
    return _fault_of_call(*payload)


def _fault_of_mapping(task: Mapping[str, Any]) -> str:
    """Of a task of protocol 1."""
    for name in ("task", "id"):
        if not isinstance(task.get(name), str):
            return f"its {name} is {_shown(task.get(name))}, and not text"
    return _fault(task, _HEADERS, "field") or _fault_of_call(
        task.get("args", ()), task.get("kwargs", {}), task
    )


def _fault_of_call(args: Any, kwargs: Any, embedded: Any) -> str:
    if not isinstance(args, list | tuple):
        return f"its arguments are {_shown(args)}, and not a list"
    if not isinstance(kwargs, dict):
        return f"its keyword arguments are {_shown(kwargs)}, and not an object"
    if not _is_mapping(embedded):
        return f"its body embeds {_shown(embedded)}, and not an object"
    return _fault(embedded or {}, _EMBEDDED, "field")


def _fault(given: Mapping[str, Any], rules: Mapping[str, _Rule], what: str) -> str:
    for name, value in given.items():
        rule = rules.get(name)
        if rule is not None and not rule.holds(value):
            return f"its {what} {name} is {_shown(value)}, and not {rule.words}"
    return ""


def _fault_of_encoding(compression: Any, encoding: str | None, kind: str | None) -> str:
    if compression:
        try:
            get_decoder(compression)
        except (KeyError, TypeError):
            return f"its compression is {_shown(compression)}, which is not known here"
    if encoding and encoding not in ("binary", "ascii-8bit"):
        try:
            codecs.lookup(encoding)
        except (LookupError, ValueError):
            return f"its content encoding is {_shown(encoding)}, which is not known here"
    return "" if kind else "it has no content type"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # it is too deep, or a number of too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
