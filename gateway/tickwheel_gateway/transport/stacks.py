"""Which library serves HTTP/2: nghttp2 where it was compiled, else h2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tickwheel_gateway.transport.call import AnyMethod
from tickwheel_gateway.transport.engine import Stack
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.with_h2.engine import Stack as WithH2

_AVAILABLE: list[str] = ["h2"]
try:
    from tickwheel_gateway.transport.with_nghttp2.engine import Stack as WithNghttp2
except ImportError:
    pass  # it was not compiled, or the library has gone since
else:
    _AVAILABLE.insert(0, "nghttp2")

VARIABLE: Final = "TICKWHEEL_HTTP2"
"""`nghttp2` or `h2`, to compare them. Empty: the best that is there."""


def available() -> tuple[str, ...]:
    """The best first."""
    return tuple(_AVAILABLE)


def choose(name: str, methods: Mapping[str, AnyMethod], limits: Limits) -> Stack:
    """By name, or by the environment. Raises LookupError for one that is not there."""
    name = name or os.environ.get(VARIABLE, "") or _AVAILABLE[0]
    if name not in _AVAILABLE:
        raise LookupError(f"HTTP/2 by {name!r} is not there")
    return WithH2(methods, limits) if name == "h2" else WithNghttp2(methods, limits)
