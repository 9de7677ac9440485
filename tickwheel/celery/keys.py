"""The key of a task that waits for its time, by which it is found and cancelled at the broker.

The task id alone will not do: a retry and a replacement have the id of what they follow, and a broker remembers a key
until its message is purged. So the key is ``id:retries:replaced_nesting``. What is sent under a key that is taken (the
same id twice by a program, or a retry of a task that ran twice) has a unique suffix.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from tickwheel.protocol.limits import MAX_KEY_BYTES

_ID_BYTES_MAX: Final = MAX_KEY_BYTES - 64
"""What is left for the id beside two numbers and a suffix."""


def task_key(task_id: str, retries: int = 0, replaced_nesting: int = 0) -> str:
    """The key of one execution of a task. An id that is too long for a key, or begins as keys that clients make, is
    replaced by its hash."""
    encoded = task_id.encode("utf-8", "surrogatepass")
    if len(encoded) > _ID_BYTES_MAX or not task_id or task_id.startswith("~") or not task_id.isprintable():
        task_id = "blake2b-" + blake2b(encoded, digest_size=20).hexdigest()
    return f"{task_id}:{retries}:{replaced_nesting}"


def eta_key(headers: Mapping[str, Any]) -> str | None:
    """The key of a message with an ETA, from the headers of task protocol 2. None: it is no task."""
    task_id = headers.get("id")
    if not isinstance(task_id, str):
        return None
    return task_key(task_id, _whole(headers.get("retries")), _whole(headers.get("replaced_task_nesting")))


def another_key(key: str) -> str:
    """A unique one that begins with ``key`` and a colon, for what is sent where that is taken."""
    return f"{key}:{secrets.token_hex(8)}"


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
