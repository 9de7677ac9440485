"""A body as text: JSON with its lines indented, text, or bytes as hexadecimal numbers."""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from typing import Final, Literal

import msgspec

MAX_SHOWN_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 32
"""Of JSON whose lines are indented: an indent for each level makes the text as many times longer."""

Form = Literal["json", "text", "hex"]


def forms(body: bytes) -> dict[Form, str]:
    """All that it can be shown as, the best one first.

    >>> forms(b'{"a":1}')["json"]
    '{\\n  "a": 1\\n}'
    >>> list(forms(b"tea")), list(forms(b"\\xff"))
    (['text', 'hex'], ['hex'])
    """
    found: dict[Form, str] = {}
    if (indented := _indented(body)) is not None:
        found["json"] = indented
    with suppress(UnicodeDecodeError):
        found["text"] = body.decode()
    found["hex"] = _hexadecimal(body)
    return found


def _indented(body: bytes) -> str | None:
    steps = ((byte in b"[{") - (byte in b"]}") for byte in body)
    if max(accumulate(steps), default=0) > _MAX_DEPTH or body[:1].isdigit():
        return None
    try:
        msgspec.json.decode(body)
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _hexadecimal(body: bytes) -> str:
    """Sixteen bytes a line, with where they are before them and what they are in ASCII behind them."""
    lines = []
    for place in range(0, len(body), 16):
        part = body[place : place + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{place:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
