"""Which library serves HTTP/2: nghttp2 where it was compiled, else h2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tickwheel_gateway.transport.call import AnyMethod
from tickwheel_gateway.transport.engine import Stack
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.with_h2.engine import Stack as WithH2

VARIABLE: Final = "TICKWHEEL_HTTP2"
"""`nghttp2` or `h2`, to compare them. Empty: the best that is there."""


def choose(name: str, methods: Mapping[str, AnyMethod], limits: Limits) -> Stack:
    """By name, or by the environment. Raises LookupError for one that is not there."""
    name = name or os.environ.get(VARIABLE, "")
    if name in ("", "h2"):
        return WithH2(methods, limits)
    raise LookupError(f"HTTP/2 by {name!r} is not there")
