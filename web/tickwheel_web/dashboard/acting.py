"""What actions of several rooms share: names that are typed, results that are counted, and paths to go on to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from tickwheel.errors import BadArgument
from tickwheel_web.dashboard.notices import Tone
from tickwheel_web.dashboard.page import Viewed

DONE: Final = ("cancelled", "stopped", "rescheduled", "redelivered", "replayed", "sent_again")
"""Results by which something was changed."""


def path_to(*parts: str) -> str:
    """
    >>> path_to("topics", "a/b")
    '/topics/a%2Fb'
    """
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def need_typed(viewed: Viewed, name: str) -> None:
    """For what cannot be taken back. Raises BadArgument."""
    if viewed.field("confirm") != name:
        raise BadArgument(
            f"This cannot be taken back, and the name that was typed is not {name}. Nothing was done.",
            advice="Go back and type the name if it is meant.",
        )


def counts(results: Iterable[object]) -> dict[str, int]:
    """How often each result came."""
    found: dict[str, int] = {}
    for one in map(str, results):
        found[one] = found.get(one, 0) + 1
    return found


def told(results: Mapping[str, int]) -> tuple[str, Tone]:
    """Exactly what became of each.

    >>> told({"already_delivered": 3, "cancelled": 212, "not_found": 0})
    ('212 cancelled, 3 already delivered', 'warn')
    """
    there = sorted((name not in DONE, name) for name, count in results.items() if count)
    text = ", ".join(f"{results[name]:,} {name.replace('_', ' ')}" for _, name in there)
    is_done = bool(text) and not any(is_other for is_other, _ in there)
    return text or "There was none. Nothing was changed.", "good" if is_done else "warn"


def counted(
    viewed: Viewed, path: str, results: Mapping[str, int], does_same: Sequence[str], **query: str
) -> Response:
    """After an action with many messages."""
    text, tone = told(results)
    return viewed.done(path, text, does_same, tone, **query)
