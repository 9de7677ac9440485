"""How a filter is refused: with the one code that RocketMQ has for it."""

from __future__ import annotations

from typing import Final

from tickwheel_gateway.wire.codes import Code, Refused

REFUSED: Final = "illegal filter expression: "
"""Before the reason."""


def refusal(why: str) -> Refused:
    """To be raised."""
    return Refused(Code.ILLEGAL_FILTER_EXPRESSION, REFUSED + why)
