"""The shapes of small charts, as numbers that templates write into SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

HEIGHT: Final = 100.0
_LEAST: Final = 2.0
"""Of a bar that is not nothing: it must be seen."""
_MARKS: Final = 4
"""At most so many steps has an axis."""


class Bar(NamedTuple):
    """One of several, of equal widths."""

    x: float
    y: float
    width: float
    height: float


class Gap(NamedTuple):
    """Where nothing is known, in the same picture."""

    x: int
    width: int


def marks(most: float, *, is_whole: bool = True) -> list[float]:
    """What stands at an axis, from its top down to 0, at equal distances; the top is no less than ``most``.

    >>> marks(1429), marks(3), marks(0), marks(0.27, is_whole=False)
    ([1500.0, 1000.0, 500.0, 0.0], [3.0, 2.0, 1.0, 0.0], [1.0, 0.0], [0.3, 0.2, 0.1, 0.0])
    """
    least = max(most / _MARKS, 1.0 if is_whole else 0.0)
    if least <= 0:
        return [1.0, 0.0]
    power = math.floor(math.log10(least))
    step, power = next(
        (step, power + more)
        for step, more in ((1, 0), (2, 0), (5, 0), (1, 1))
        if _times(step, power + more) >= least
    )
    count = max(1, math.ceil(most / _times(step, power)))
    return [_times(step * number, power) for number in range(count, -1, -1)]


def _times(number: int, power: int) -> float:
    """As exact as a float can be: 3 tenths are 0.3."""
    return number * 10.0**power if power >= 0 else number / 10.0**-power


def gaps(values: Sequence[float | None]) -> list[Gap]:
    """
    >>> gaps([None, None, 1, 2, None])
    [Gap(x=0, width=2), Gap(x=4, width=1)]
    """
    runs = [list(run) for _, run in groupby(range(len(values)), lambda number: values[number] is None)]
    return [Gap(run[0], len(run)) for run in runs if values[run[0]] is None]


def bars(
    values: Sequence[float | None], *, gap: float = 0.2, is_log: bool = False, top: float = 0.0
) -> list[Bar]:
    """In a picture that is as wide as there are values, and ``HEIGHT`` high. None: nothing is known there. ``top``: the
    value at the upper end; 0: the largest of them.

    >>> bars([0, 1, 2])[1:]
    [Bar(x=1.1, y=50.0, width=0.8, height=50.0), Bar(x=2.1, y=0.0, width=0.8, height=100.0)]
    """
    scaled = [_scaled(value or 0, is_log=is_log) for value in values]
    most = _scaled(top, is_log=is_log) or max(scaled, default=0) or 1
    found = []
    for number, value in enumerate(scaled):
        height = max(round(value / most * HEIGHT, 2), _LEAST) if value else 0.0
        found.append(Bar(round(number + gap / 2, 3), round(HEIGHT - height, 2), round(1 - gap, 3), height))
    return found


def line(values: Sequence[float | None], *, is_log: bool = False, top: float = 0.0) -> str:
    """The path of a line over the same picture, broken where nothing is known. ``top`` as of bars.

    >>> line([0, 2, None, 1])
    'M0.5 100.0L1.5 0.0M3.5 50.0h0'
    """
    scaled = [None if value is None else _scaled(value, is_log=is_log) for value in values]
    most = (
        _scaled(top, is_log=is_log) or max((value for value in scaled if value is not None), default=0) or 1
    )
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
