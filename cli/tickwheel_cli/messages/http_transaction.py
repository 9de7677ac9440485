"""Transactions as `POST /v1/transactions` takes them: an object with lists of sends, cancels, reschedules and acks."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tickwheel.protocol.receipts import decode_receipt
from tickwheel_cli.shared.times import parse_duration, parse_moment

if TYPE_CHECKING:
    from tickwheel import sync

NAMES: Final = ("id", "sends", "cancels", "reschedules", "acks")
_FORMS: Final = ("body", "text", "base64")
_TIME: Final = ("delay", "deliver_at")
_WHICH: Final = ("id", "topic", "key")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sends": ("topic", *_FORMS, "key", "order_key", "priority", "headers", *_TIME),
    "cancels": _WHICH,
    "reschedules": (*_WHICH, "priority", *_TIME),
    "acks": ("topic", "group", "receipts"),
}
_CONTENT_TYPES: Final = {"body": "application/json", "text": "text/plain; charset=utf-8"}


def read(data: bytes) -> dict[str, Any] | None:
    """The object; None: this is something else, such as a line for each part."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found and found.keys() <= set(NAMES) else None


def add(tx: sync.Transaction, given: Mapping[str, Any]) -> list[str]:
    """Puts all of it into a transaction; what is wrong with its parts."""
    problems = []
    adding: Mapping[str, Callable[[sync.Transaction, dict[str, Any]], None]] = {
        "sends": _send,
        "cancels": _cancel,
        "reschedules": _reschedule,
        "acks": _ack,
    }
    for name, add_one in adding.items():
        parts = given.get(name, [])
        if not isinstance(parts, list):
            problems.append(f'"{name}" is no list')
            continue
        for index, part in enumerate(parts):
            try:
                add_one(tx, _checked(name, part))
            except (ValueError, TypeError) as error:
                problems.append(f"{name}[{index}]: {error}")
    return problems


def _checked(name: str, part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise ValueError("it is no object")
    unknown = [field for field in part if field not in _FIELDS[name]]
    if unknown:
        raise ValueError(f'there is no field "{unknown[0]}"; there is {", ".join(_FIELDS[name])}')
    return dict(part)


def _needed(part: dict[str, Any], name: str) -> Any:
    if name not in part:
        raise ValueError(f'"{name}" is missing')
    return part.pop(name)


def _times(part: dict[str, Any]) -> None:
    if "delay" in part:
        part["delay"] = parse_duration(str(part["delay"]))
    if "deliver_at" in part:
        part["deliver_at"] = parse_moment(str(part["deliver_at"]))


def _send(tx: sync.Transaction, part: dict[str, Any]) -> None:
    forms = [name for name in _FORMS if name in part]
    if len(forms) != 1:
        raise ValueError(f"give exactly one of {', '.join(_FORMS)}")
    form, topic = forms[0], _needed(part, "topic")
    value = part.pop(form)
    if form == "body":
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    elif not isinstance(value, str):
        raise ValueError(f'"{form}" is no text')
    else:
        body = value.encode() if form == "text" else _bytes(value)
    if form in _CONTENT_TYPES:
        part["headers"] = {"content-type": _CONTENT_TYPES[form], **(part.get("headers") or {})}
    _times(part)
    tx.send(topic, body, **part)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("base64 is no base64") from None


def _which(part: dict[str, Any]) -> Any:
    if "id" in part:
        part["id"] = int(part["id"])
    return part.pop("topic", None)


def _cancel(tx: sync.Transaction, part: dict[str, Any]) -> None:
    tx.cancel(_which(part), **part)


def _reschedule(tx: sync.Transaction, part: dict[str, Any]) -> None:
    _times(part)
    tx.reschedule(_which(part), **part)


def _ack(tx: sync.Transaction, part: dict[str, Any]) -> None:
    topic, group, receipts = (_needed(part, name) for name in _FIELDS["acks"])
    if not isinstance(receipts, list) or not all(isinstance(one, str) for one in receipts):
        raise ValueError('"receipts" is no list of texts')
    for text in receipts:
        receipt = decode_receipt(topic, group, text)
        tx.ack_receipts(receipt.group_id, [(receipt.id, receipt.epoch)])
