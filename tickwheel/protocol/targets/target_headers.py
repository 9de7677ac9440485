"""Headers of HTTP that users may set for requests to their URLs; and the headers of a message that is an HTTP task.

>>> task_headers("https://a.example/x", "GET", {"X-Shop": "7"})
{'tickwheel-url': 'https://a.example/x', 'tickwheel-method': 'GET', 'tickwheel-header-x-shop': '7'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tickwheel.protocol.targets import target_urls

METHODS: Final = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD")
"""Those that a task may have; the first one is that of a task that names none."""
URL: Final = "tickwheel-url"
METHOD: Final = "tickwheel-method"
HEADER_PREFIX: Final = "tickwheel-header-"
MAX_HEADERS: Final = 32

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_VALUE: Final = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_OWN: Final = frozenset(
    {
        "connection", "content-length", "expect", "host", "keep-alive", "te", "traceparent", "tracestate", "trailer",
        "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip
_OWN_PREFIXES: Final = ("ce-", "proxy-", "tickwheel-", "webhook-")


class Task(NamedTuple):
    """What a message says of the request that it is."""

    url: str
    method: str
    headers: dict[str, str]


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError with what is wrong."""
    if len(headers) > MAX_HEADERS:
        raise ValueError(f"there are {len(headers)} headers; {MAX_HEADERS} are possible")
    seen = set()
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of a header")
        lower = name.lower()
        if lower in _OWN or lower.startswith(_OWN_PREFIXES):
            raise ValueError(f"the header {name!r} is set by Tickwheel itself")
        if lower in seen:
            raise ValueError(f"the header {name!r} is given twice")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name!r} has characters that it cannot have")
        seen.add(lower)


def task_headers(url: str, method: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of the message. Raises ValueError with what is wrong."""
    target_urls.check_url(url)
    if method not in METHODS:
        raise ValueError(f"{method[:20]!r} is no method of a task; there are {', '.join(METHODS)}")
    check_headers(headers)
    given = {HEADER_PREFIX + name.lower(): value for name, value in headers.items()}
    return {URL: url, METHOD: method, **given}


def task_of(headers: Mapping[str, Any]) -> Task:
    """The request that a message with these headers is; it may have been sent by anything. Raises ValueError."""
    if any(not isinstance(value, str) for name, value in headers.items() if _is_of_task(name)):
        raise ValueError("a header of the task is no text")
    url, method = headers.get(URL, ""), headers.get(METHOD, METHODS[0])
    if not url:
        raise ValueError(f"the message has no header {URL}")
    own = {
        name.removeprefix(HEADER_PREFIX): value
        for name, value in headers.items()
        if name.startswith(HEADER_PREFIX)
    }
    task_headers(url, method, own)
    return Task(url, method, own)


def _is_of_task(name: str) -> bool:
    return name in (URL, METHOD) or name.startswith(HEADER_PREFIX)
