"""The same as a command, in Python, and with curl: what a page shows to be copied."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

_URL: Final = "http://127.0.0.1:7413"
_AUTHORIZED: Final = '-H "Authorization: Bearer $TICKWHEEL_TOKEN"'


class Calls(NamedTuple):
    """What a terminal takes, a program, and curl."""

    command: str
    python: str
    curl: str


def moment_option(text: str) -> list[str]:
    """Of a command: ``--in`` for how far it is from now, ``--at`` for a time, nothing for none."""
    if not text or text == "now":
        return []
    return ["--at" if text[:4].isdigit() and "-" in text[4:5] else "--in", text.lstrip("+")]


def curl(method: str, path: Sequence[str], body: Mapping[str, Any] | None = None) -> str:
    """With JSON, if there is any. The token is a variable of the shell."""
    target = shlex.quote(_URL + "/v1/" + "/".join(quote(one, safe="") for one in path))
    first = f"curl -X {method} {_AUTHORIZED}" if method != "GET" else f"curl {_AUTHORIZED}"
    if body is None:
        return f"{first} {target}"
    text = json.dumps(body, ensure_ascii=False)
    return f"{first} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)} \\\n  {target}"


def python(method: str, *arguments: object, **named: object) -> str:
    """Of a program that waits for the answer."""
    words = [repr(one) for one in arguments] + [f"{name}={value!r}" for name, value in named.items()]
    return (
        "from tickwheel import sync\n\n"
        f"with sync.Client() as client:\n    print(client.{method}({', '.join(words)}))"
    )
