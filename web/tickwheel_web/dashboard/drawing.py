"""The shapes of small charts, as numbers that templates write into SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

HEIGHT: Final = 100.0
_LEAST: Final = 2.0
"""Of a bar that is not nothing: it must be seen."""


class Bar(NamedTuple):
    """One of several, of equal widths."""

    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[float | None], *, gap: float = 0.2, is_log: bool = False) -> list[Bar]:
    """In a picture that is as wide as there are values, and ``HEIGHT`` high. None: nothing is known there.

    >>> bars([0, 1, 2])[1:]
    [Bar(x=1.1, y=50.0, width=0.8, height=50.0), Bar(x=2.1, y=0.0, width=0.8, height=100.0)]
    """
    scaled = [_scaled(value or 0, is_log=is_log) for value in values]
    most = max(scaled, default=0) or 1
    found = []
    for number, value in enumerate(scaled):
        height = max(round(value / most * HEIGHT, 2), _LEAST) if value else 0.0
        found.append(Bar(round(number + gap / 2, 3), round(HEIGHT - height, 2), round(1 - gap, 3), height))
    return found


def line(values: Sequence[float | None], *, is_log: bool = False) -> str:
    """The path of a line over the same picture, broken where nothing is known.

    >>> line([0, 2, None, 1])
    'M0.5 100.0L1.5 0.0M3.5 50.0h0'
    """
    scaled = [None if value is None else _scaled(value, is_log=is_log) for value in values]
    most = max((value for value in scaled if value is not None), default=0) or 1
    path, pen = [], "M"
    for number, value in enumerate(scaled):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{number + 0.5} {round(HEIGHT - value / most * HEIGHT, 2)}")
        if pen == "M" and (number + 1 == len(scaled) or scaled[number + 1] is None):
            path.append("h0")  # a point alone is drawn, too, by its round end
        pen = "L"
    return "".join(path)


def level(value: float, most: float, levels: int = 5) -> int:
    """Of so many levels of a heat map, 0 is nothing, and the highest is near the most; by magnitude.

    >>> [level(value, 1000) for value in (0, 1, 10, 200, 1000)]
    [0, 1, 2, 4, 5]
    """
    if value <= 0:
        return 0
    return max(1, min(levels, math.ceil(math.log1p(value) / math.log1p(most) * levels)))


def _scaled(value: float, *, is_log: bool) -> float:
    return math.log1p(value) if is_log else float(value)
