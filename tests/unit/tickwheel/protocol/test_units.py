"""Durations and sizes, as people write them."""

import pytest

from tickwheel.protocol.units import (
    format_duration,
    format_size,
    parse_duration_ms,
    parse_size_bytes,
    seconds_ms,
)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("250ms", 250), ("30s", 30_000), ("1.5s", 1_500), ("1h30m", 5_400_000), ("2d", 172_800_000), ("0", 0)],
)
def test_durations(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        *[("1.0001s", 1_001), ("0.1ms", 1), ("1.5ms", 2), ("PT0.0001S", 1), ("1.1s", 1_100), ("0.07s", 70)],
        *[
            ("0.0ms", 0),
            ("1s0.2ms0.3ms", 1_001),
            ("0.1h", 360_000),
            ("8.0000000000000000000000001d", 691_200_001),
        ],
    ],
)
def test_parts_of_a_millisecond_are_rounded_up(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["9" * 400 + "s", "0." + "0" * 5_000 + "1s"])
def test_durations_that_nobody_means(text: str) -> None:
    with pytest.raises(ValueError, match="far too long"):
        parse_duration_ms(text)


@pytest.mark.parametrize(("seconds", "ms"), [(0.07, 70), (1.0001, 1_001), (3, 3_000), (1e-9, 1), (0, 0)])
def test_seconds(seconds: float, ms: int) -> None:
    assert seconds_ms(seconds) == ms


@pytest.mark.parametrize("text", ["", "30", "30 parsecs", "-5s", "s", "1h 30"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("0", 0),
        ("65536", 65_536),
        ("64k", 65_536),
        ("4MiB", 4_194_304),
        ("1.5 GiB", 1_610_612_736),
        ("2MB", 2_000_000),
    ],
)
def test_sizes(text: str, expected_bytes: int) -> None:
    assert parse_size_bytes(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "big", "4XB", "-1", "1e9"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize("duration_ms", [0, 1, 999, 1_000, 90_000, 3_600_000, 604_800_000])
def test_a_formatted_duration_reads_back(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize("size_bytes", [0, 1, 1_000, 1_024, 4 << 20, 3 << 30])
def test_a_formatted_size_reads_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("PT30S", 30_000), ("pt1h30m", 5_400_000), ("P1DT0.5S", 86_400_500), ("P2W", 1_209_600_000)],
)
def test_durations_of_iso_8601(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["P", "PT", "P1M", "P1Y", "P1DT", "PT1D", "PT250MS"])
def test_what_is_no_duration_of_iso_8601(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)
