"""The picture of the wheel: bars, heat strips and the whole, as text."""

from __future__ import annotations

import pytest
from rich.console import Console

from tickwheel.stats import Forecast, Wheel, WheelLevel
from tickwheel_cli.looking.wheel_picture import heat_strip, squeeze, stretches, wheel_picture
from tickwheel_cli.shared.bars import bar

NOW_MS = 1_935_385_200_000
LABELS = ("second", "minute", "hour", "day", "week", "month", "later")


def wheel() -> Wheel:
    levels = [WheelLevel(level, 4096**level, 2, 1_003, [3, *[0] * 62, 1_000]) for level in range(4)]
    counts = (3, 3, 10, 10, 10, 10, 4_012)
    forecast = [Forecast(label, NOW_MS, count) for label, count in zip(LABELS, counts, strict=True)]
    return Wheel(tick_ms=NOW_MS, now_ms=NOW_MS, levels=levels, forecast=forecast, gone=12)


def rendered(picture: Wheel, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(wheel_picture(picture, width))
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("value", "text"), [(0, ""), (8, "█" * 8), (4, "█" * 4), (1, "█"), (0.01, "▏"), (7.5, "█" * 7 + "▌")]
)
def test_bars_are_in_proportion_and_never_vanish(value: int, text: str) -> None:
    assert bar(value, 8, 8) == text


def test_no_bar_without_anything() -> None:
    assert bar(0, 0, 8) == ""


@pytest.mark.parametrize("width", [1, 7, 16, 40, 64, 100])
def test_squeezing_loses_nothing(width: int) -> None:
    heat = list(range(64))
    cells = squeeze(heat, width)
    assert len(cells) <= width
    assert sum(cells) == sum(heat)


def test_heat_is_higher_the_more_there_is() -> None:
    strip = heat_strip([0, 1, 1_000, 10**6], 64).plain
    assert strip[0] == "·"
    assert strip[1] < strip[2] < strip[3] == "█"


def test_stretches_are_what_the_rows_above_do_not_have() -> None:
    assert stretches(wheel().forecast)[:3] == [("next second", 3), ("next minute", 0), ("next hour", 7)]
    assert stretches(wheel().forecast)[-1] == ("later", 4_002)


def test_what_is_left_over_is_no_timer_that_waits() -> None:
    """Four messages that were acked: their leases' timers do nothing any more."""
    level = WheelLevel(0, 1, 4, 4, [4])
    (title, *_) = rendered(Wheel(0, 0, [level], [], gone=4), 80)
    assert title.startswith("the wheel  0 timers; left over: 4  ")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_picture_fits_and_tells_all(width: int) -> None:
    lines = rendered(wheel(), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "4,000 timers; left over" in lines[0]
    assert "messages and leases" in text
    assert "left over: 12" in lines[0]
    assert "2031-05-01T07:00:00.000Z" in lines[0]
    assert all(f"next {label}" in text for label in LABELS[:-1])
    assert all(slot in text for slot in ("1 ms", "4.1 s", "4 h 40 min", "2.2 years"))
