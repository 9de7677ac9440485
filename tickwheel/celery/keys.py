"""The key of a task that waits for its time, by which it is found and cancelled at the broker.

The task id alone will not do: a retry and a replacement have the id of what they follow, and a broker remembers a key
until its message is purged. So the key is ``id:retries:replaced_nesting``. What is sent under a key that is taken (the
same id twice by a program, or a retry of a task that ran twice) has one of the id's ``copy_keys``, and so have the rare
retries and replacements whose key nobody would ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from tickwheel.protocol.limits import MAX_KEY_BYTES
from tickwheel.sharing.copy_keys import copy_keys, copy_keys_to_try

_RETRIES_ASKED: Final = 16
"""How many retries of a task have a key of their own."""

_ID_BYTES_MAX: Final = MAX_KEY_BYTES - 64
"""What is left for the id beside two numbers and a suffix."""


def task_key(task_id: str, retries: int = 0) -> str:
    """The key of one execution of a task."""
    return f"{_name(task_id)}:{retries}:0"


def task_keys(task_id: str) -> Iterator[tuple[str, bool]]:
    """The keys of all messages of a task, and whether each is of further messages."""
    for retries in range(_RETRIES_ASKED):
        yield task_key(task_id, retries), False
    for key in copy_keys(_name(task_id)):
        yield key, True


def eta_key(headers: Mapping[str, Any]) -> str | None:
    """The key of a message with an ETA, from the headers of task protocol 2. None: it is no task."""
    task_id = headers.get("id")
    if not isinstance(task_id, str):
        return None
    retries, nesting = _whole(headers.get("retries")), _whole(headers.get("replaced_task_nesting"))
    if 0 <= retries < _RETRIES_ASKED and nesting == 0:
        return task_key(task_id, retries)
    return next(copy_keys_to_try(_name(task_id)))


def other_keys(key: str) -> Iterator[str]:
    """For a message whose ``key`` is taken: of these it takes the first that is free."""
    return copy_keys_to_try(key.rsplit(":", 2)[0])


def _name(task_id: str) -> str:
    """The id as keys begin. An id that is too long for a key, or begins as keys that clients make, is replaced by its
    hash."""
    encoded = task_id.encode("utf-8", "surrogatepass")
    if len(encoded) > _ID_BYTES_MAX or not task_id or task_id.startswith("~") or not task_id.isprintable():
        return "blake2b-" + blake2b(encoded, digest_size=20).hexdigest()
    return task_id


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
