"""Columns of a batch, checked without Spark: times that are texts, headers as MessagePack, the reason of each row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.arrow.errors import SourceError
from tickwheel.spark.writing.columns import check_columns, checked, shown
from tickwheel.spark.writing.headers import packed_headers
from tickwheel.spark.writing.moments import GOOD, NAIVE, NUMBER, UNREADABLE, parse_moment, parse_moments
from tickwheel.spark.writing.reasons import CODES, CORRUPT, REASONS
from tickwheel.spark.writing.zones import zone_of

AT = 1_935_403_200_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch(**columns: Any) -> Any:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def codes(found: Any) -> list[str]:
    return [CODES[number] for number in found.reasons.tolist()]


@table(
    ("text", "time_ms", "state"),
    [
        ("2031-05-01T12:00:00Z", AT, GOOD),
        ("2031-05-01 12:00:00Z", AT, GOOD),
        (" 2031-05-01T12:00Z ", AT, GOOD),
        ("2031-05-01T14:00:00+02:00", AT, GOOD),
        ("2031-05-01T14:00:00.000+0200", AT, GOOD),
        ("2031-05-01T14:00:00+02", AT, GOOD),
        ("2031-05-01T12:00:00.0001Z", AT + 1, GOOD),
        ("2031-05-01T12:00:00.001000001Z", AT + 2, GOOD),
        ("2031-04-30T23:59:60Z", AT - 12 * 3_600_000, GOOD),
        ("2031-05-01T12:00:00.001000000Z", AT + 1, GOOD),
        ("20310501T120000Z", AT, GOOD),
        ("1935403200000", AT, NUMBER),
        ("+1935403200000", AT, NUMBER),
        ("-1", -1, NUMBER),
        ("1969-12-31T23:59:59.9995Z", 0, GOOD),
        ("2031-05-01T12:00:00", 0, NAIVE),
        ("2031-05-01 12:00", 0, NAIVE),
        ("2031-05-01", 0, NAIVE),
        ("2031-W18-4T12:00:00", 0, NAIVE),
        ("2031-13-01T12:00:00Z", 0, UNREADABLE),
        ("tomorrow", 0, UNREADABLE),
        ("", 0, UNREADABLE),
        ("12345678901234567890", 0, UNREADABLE),
    ],
)
def test_times_as_texts(text: str, time_ms: int, state: int) -> None:
    for around in ([text], [text, None, "2031-05-01T12:00:00Z", "x", "5"]):
        times, states = parse_moments(pa.array(around, pa.string()))
        assert (int(times[0]), int(states[0])) == (time_ms, state)
        assert states[1:].tolist() == [GOOD, GOOD, UNREADABLE, NUMBER][: len(around) - 1]
        assert times[1:].tolist() == [0, AT, 0, 5][: len(around) - 1]


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)),
            st.integers(-14 * 60, 14 * 60),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_columns_of_times_are_read_as_single_ones(moments: list[tuple[datetime, int, bool]]) -> None:
    aware = [moment.replace(tzinfo=timezone(timedelta(minutes=offset))) for moment, offset, _ in moments]
    texts = [
        one.isoformat(" " if spaced else "T") for one, (_, _, spaced) in zip(aware, moments, strict=True)
    ]
    times, states = parse_moments(pa.array(texts, pa.string()))
    assert times.tolist() == [-((EPOCH - one) // timedelta(milliseconds=1)) for one in aware]
    assert list(zip(times.tolist(), states.tolist(), strict=True)) == [parse_moment(text) for text in texts]


headers = st.dictionaries(st.text(max_size=40), st.one_of(st.none(), st.text(max_size=300)), max_size=20)


@given(st.lists(st.one_of(st.none(), headers), max_size=6), st.integers(0, 3))
def test_maps_are_packed_as_dicts_are(maps: list[dict[str, str | None] | None], start: int) -> None:
    kind = pa.map_(pa.string(), pa.string())
    column = pa.array([None if one is None else list(one.items()) for one in maps], kind).slice(start)
    packed, bad = packed_headers(column)
    wanted = [one if not one else msgspec.msgpack.encode(one) for one in maps[start:]]
    assert packed.to_pylist() == [b"" if one == {} else one for one in wanted]
    assert not bad.any()


def test_headers_as_json() -> None:
    texts = ['{"a": [1]}', None, "{}", "[1]", "{", '{"a": [1]}', '{"n": 123456789012345678901234567890}']
    packed, bad = packed_headers(pa.array(texts))
    assert packed.to_pylist()[:3] == [msgspec.msgpack.encode({"a": [1]}), None, b""]
    assert packed[5].as_py() == packed[0].as_py()
    assert bad.tolist() == [False, False, False, True, True, False, packed[6].as_py() is None]


def test_the_first_reason_of_a_row_counts() -> None:
    kinds: dict[str, list[Any]] = {
        "deliver_at": [str(AT), None, "2031-05-01T12:00:00", "x", "-5", *[str(AT)] * 8],
        "body": ["b", None, "b", "b", "b", None, "b", "b", "b", "b", "b", "b", "b"],
        "topic": ["t", "a b", "t", "t", "t", "t", None, "a b", "t", "t", "t", "t", "t"],
        "priority": ["7", "", "1", "1", "1", "1", "1", "1", "256", "high", None, " 255 ", "1"],
        "key": ["k", "", "k", "k", "k", "k", "k", "k", "k", "k", "", "é" * 127, "é" * 128],
    }
    rows = batch(**{name: pa.array(values, pa.string()) for name, values in kinds.items()})
    assert codes(checked(rows, None)) == [
        "", "no_time", "naive_time", "unreadable_time", "bad_time", "no_body", "no_topic", "bad_topic",
        "bad_priority", "bad_priority", "bad_key", "", "bad_key",
    ]  # fmt: skip
    named = checked(rows, "other")
    assert codes(named)[6] == ""
    assert named.topics[named.topic_of[6]] == "other"
    assert named.priority is not None
    assert named.priority.to_pylist()[11] == 255


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_seconds_are_no_milliseconds(kind: Any) -> None:
    """Seconds of 1973 and of 2031; row numbers; what is about now as milliseconds."""
    numbers = [0, 999, 99_999_999, AT // 1_000, 10**12 - 1, 10**12, AT]
    times = pa.array([str(one) if kind == pa.string() else one for one in numbers], kind)
    found = codes(checked(batch(deliver_at=times, body=[b""] * len(numbers)), "t"))
    assert found == [*["seconds_time"] * 5, "", ""]
    real = pa.array([0, AT // 1_000 * 1_000], pa.int64()).view(pa.timestamp("us", "UTC"))
    assert codes(checked(batch(deliver_at=real, body=[b"", b""]), "t")) == ["", ""]
    texts = pa.array(["1999-12-31T23:59:59Z"])
    assert codes(checked(batch(deliver_at=texts, body=[b""]), "t")) == [""]


def test_what_is_too_large_and_what_is_no_row() -> None:
    large = pa.array(
        [[("h", "x" * size)] for size in (32_000, 33_000, 140_000)], pa.map_(pa.string(), pa.string())
    )
    rows = batch(deliver_at=[AT, AT, AT], body=[b"", b"", b""], headers=large)
    assert codes(checked(rows, "t")) == ["", "headers_too_large", "headers_too_large"]
    torn = pa.array([None, "1,2,3", None], pa.string())
    rows = batch(
        **{"deliver_at": pa.array([str(AT), None, None], pa.string()), "body": ["b"] * 3, CORRUPT: torn}
    )
    assert codes(checked(rows, "t")) == ["", "unreadable_row", "no_time"]


def test_values_are_shown_cut() -> None:
    maps = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    far = pa.array([np.int64(1) << 62]).view(pa.timestamp("us", "UTC"))
    rows = batch(deliver_at=far, body=[b"\xff" + b"x" * 100], headers=maps, key=pa.array([None], pa.string()))
    assert shown(rows, "deliver_at", 0) == str(1 << 62)
    assert shown(rows, "body", 0) == "\ufffd" + "x" * 79 + "…"
    assert shown(rows, "headers", 0) == '{"a":"b"}'
    assert shown(rows, "key", 0) is None
    assert shown(rows, "topic", 0) is None


def test_all_that_is_wrong_with_columns_is_told_at_once() -> None:
    with pytest.raises(SourceError) as caught:
        check_columns({"deliver_at": "timestamp_ntz", "bdoy": "string", "priority": "string"}, None)
    for part in ("no time zone", "no column 'bdoy'", "priority is string", "no column body", "no topic"):
        assert part in caught.value.message
    assert "The columns are: deliver_at timestamp_ntz, bdoy string, priority string." in caught.value.message
    assert "Cast them to timestamp" in caught.value.advice
    check_columns({"deliver_at": "string", "body": "string", "priority": "string"}, "t", are_texts=True)


def test_each_reason_has_a_text() -> None:
    assert all(column and text for column, text in list(REASONS.values())[1:])


def broken(*texts: bytes | None) -> Any:
    """Texts as casts of Spark make them, of any bytes."""
    return pa.array(texts, pa.binary()).view(pa.string())


def test_texts_that_are_no_utf8() -> None:
    found = checked(
        batch(
            key=broken(b"\xff", b"a", None, b"", "ü".encode()),
            order_key=broken(b"a", b"\xfe", b"a", b"a", None),
            deliver_at=[AT] * 5,
            body=broken(b"\xff", b"", b"x", b"x", b"x"),
        ),
        "t",
    )
    assert codes(found) == ["bad_key", "bad_order_key", "", "bad_key", ""]
    assert found.key.to_pylist()[-1] == "ü".encode()
    assert found.body.to_pylist()[0] == b"\xff", "a body may be any bytes"
    found = checked(
        batch(
            deliver_at=broken(b"\xff", str(AT).encode(), str(AT).encode(), str(AT).encode()),
            topic=broken(b"a", b"\xff", b"b", None),
            headers=broken(b"{}", b"{}", b'{"a":"\xff"}', b"{}"),
            body=["x"] * 4,
        ),
        None,
    )
    assert codes(found) == ["unreadable_time", "bad_topic", "bad_headers", "no_topic"]
    assert found.topics[found.topic_of[2]] == "b"


@pytest.mark.parametrize("start", [0, 1, 2])
def test_maps_that_are_no_utf8(start: int) -> None:
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 1, 3, 4, 4], pa.int32()),
        broken(b"a", b"b", b"\xff", b"d"),
        broken(b"\xff", b"1", b"2", b"3"),
    )
    whole = batch(deliver_at=[AT] * 5, body=["x"] * 5, headers=maps).slice(start)
    found = checked(whole, "t")
    assert codes(found) == ["bad_headers", "", "bad_headers", "", ""][start:]
    assert found.headers.to_pylist()[3 - start] == b"\x81\xa1d\xa13"
    assert shown(whole, "headers", 2 - start) == "no UTF-8"


def test_bytes_of_a_text_file_that_are_no_utf8() -> None:
    texts = ["a", "b\ufffd", "c"]
    columns = {"key": texts, "deliver_at": [AT] * 3, "body": ["x", "x", "\ufffdx"]}
    assert codes(checked(batch(**columns), "t")) == ["", "", ""], "a DataFrame means what it says"
    found = checked(batch(**columns, **{CORRUPT: pa.nulls(3, pa.string())}), "t")
    assert codes(found) == ["", "unreadable_row", "unreadable_row"]


BERLIN = zone_of("Europe/Berlin")


def test_times_without_a_zone_are_in_the_zone_that_is_named() -> None:
    texts = [
        "2031-05-01T09:00:00", "2031-12-01 09:00", "2031-05-01", "2031-05-01T09:00:00.0000001", "2031-05-01T09:00Z",
        "1988150400000", "2031-05-01T09:00:00,5", "nonsense", None,
    ]  # fmt: skip
    rows = batch(deliver_at=pa.array(texts, pa.string()), body=[b""] * len(texts))
    found = checked(rows, "t", BERLIN)
    assert codes(found) == [*[""] * 7, "unreadable_time", "no_time"]
    expected = [
        datetime(2031, 5, 1, 7, tzinfo=UTC), datetime(2031, 12, 1, 8, tzinfo=UTC),
        datetime(2031, 4, 30, 22, tzinfo=UTC), datetime(2031, 5, 1, 7, 0, 0, 1_000, tzinfo=UTC),
        datetime(2031, 5, 1, 9, tzinfo=UTC),
        datetime(2033, 1, 1, tzinfo=UTC), datetime(2031, 5, 1, 7, 0, 0, 500_000, tzinfo=UTC),
    ]  # fmt: skip
    assert found.deliver_at_ms.tolist()[:7] == [round(one.timestamp() * 1_000) for one in expected]
    assert codes(checked(rows, "t"))[:4] == ["naive_time"] * 4
    zoned = batch(deliver_at=pa.array(texts[:1], pa.string()), body=[b""])
    assert codes(checked(zoned, "t", BERLIN)) == [""]


def test_hours_that_come_twice_or_are_skipped() -> None:
    """In 2031 clocks are put forward on 30 March and back on 26 October, at 01:00 UTC."""
    local = [datetime(2031, 10, 26, 2, 30), datetime(2031, 3, 30, 2, 30), datetime(2031, 3, 30, 3, 0)]
    meant = [
        datetime(2031, 10, 26, 0, 30, tzinfo=UTC), datetime(2031, 3, 30, 1, 30, tzinfo=UTC),
        datetime(2031, 3, 30, 1, 0, tzinfo=UTC),
    ]  # fmt: skip
    expected = [round(one.timestamp() * 1_000) for one in meant]
    for column in (pa.array(local, pa.timestamp("us")), pa.array([one.isoformat() for one in local])):
        found = checked(batch(deliver_at=column, body=[b""] * 3), "t", BERLIN)
        assert found.deliver_at_ms.tolist() == expected
    zoned = pa.array(meant, pa.timestamp("us", "UTC"))
    found = checked(batch(deliver_at=zoned, body=[b""] * 3), "t", BERLIN)
    assert found.deliver_at_ms.tolist() == expected, "what has a zone keeps it"


def test_far_times_in_a_zone() -> None:
    far = pa.array([-(1 << 62), 1 << 62, None], pa.int64()).cast(pa.timestamp("us"))
    found = checked(batch(deliver_at=far, body=[b""] * 3), "t", BERLIN)
    assert codes(found) == ["bad_time", "bad_time", "no_time"]
    none = batch(deliver_at=pa.array([], pa.timestamp("us")), body=pa.array([], pa.binary()))
    assert codes(checked(none, "t", BERLIN)) == []


@pytest.mark.parametrize("name", ["Mars", "", "../etc/passwd", None, 7])
def test_no_zone(name: object) -> None:
    with pytest.raises(SourceError, match=r"tz is|no time zone") as caught:
        zone_of(name)
    assert "Europe/Berlin" in caught.value.advice
