"""What a query may do, what it costs to read, and how its answer is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.ipc
import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import send
from tests.support.stores.queried import answer_to, ask, job
from tickwheel.protocol.frames import FrameReader, FrameType
from timerlog.commitlog.view import LogView
from timerlog.query.columns import TABLE_COLUMNS
from timerlog.query.worker import Sql, run_job
from timerlog.readers.snapshot import Snapshot
from timerlog.store import Store


@pytest.fixture
def filled(store: Store) -> Store:
    topic = store.topics.open("orders", NOW_MS)
    store.produce.ingest(send(topic, [b"body %d" % n for n in range(1_000)]), NOW_MS)
    pump(store, NOW_MS)
    return store


def refusal(store: Store, sql: str, **changes: Any) -> dict[str, Any]:
    kind, body = answer_to(job(store, sql, NOW_MS, **changes))
    assert kind == FrameType.ERROR, body
    return body


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "selec 1",
        "SELECT nothing FROM orders",
        "SELECT * FROM nowhere",
        "SELECT 1; SELECT 2",
        "DROP VIEW orders",
        "DELETE FROM orders",
        "CREATE TABLE x (a INT)",
        "INSERT INTO orders VALUES (1)",
        "SET threads = 4",
        "RESET lock_configuration",
        "ATTACH 'x.db'",
        "COPY orders TO 'x.csv'",
        "COPY (SELECT 1) TO 'x.csv'",
        "EXPORT DATABASE 'x'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA version",
        "CALL pragma_version()",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
        "SELECT * FROM python_arrow_scan(1, 2, 3)",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM job",
        "SELECT getenv('PATH')",
        "SELECT 'infinity'::TIMESTAMPTZ",
    ],
)
def test_a_query_only_reads_messages(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = filled.tables.rows[: filled.tables.next_id].tobytes()
    error = refusal(filled, sql)
    assert error["code"] == "bad_query"
    assert error["message"]
    assert error["advice"]
    assert filled.tables.rows[: filled.tables.next_id].tobytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_memory_is_bounded(filled: Store) -> None:
    error = refusal(filled, "SELECT string_agg(repeat('x', 1000000), '') FROM range(2000)")
    assert error["code"] == "bad_query"
    assert "memory" in error["message"]


def counted(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, measure: Callable[..., int]
) -> list[int]:
    original, seen = getattr(owner, name), []

    def counting(self: Any, *args: Any) -> Any:
        seen.append(measure(*args))
        return original(self, *args)

    monkeypatch.setattr(owner, name, counting)
    return seen


def test_the_log_is_read_only_for_what_is_asked(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = counted(monkeypatch, LogView, "records", lambda ids, rows: len(ids))
    bodies = counted(monkeypatch, LogView, "gather", lambda starts, sizes: len(starts))
    sql = "SELECT state, count(*), min(time_next) FROM orders WHERE epoch < 3 GROUP BY state"
    assert ask(filled, sql, NOW_MS)[0]["count_star()"] == 1_000
    assert (looked_up, bodies) == ([], [])
    assert ask(filled, "SELECT body FROM orders WHERE id = 7", NOW_MS) == [{"body": b"body 6"}]
    assert (sum(looked_up), sum(bodies)) == (1, 1)
    bodies.clear()
    sql = "SELECT count(body) AS n FROM orders WHERE id >= 100 AND id < 130 AND state = 'ready'"
    assert ask(filled, sql, NOW_MS) == [{"n": 30}]
    assert sum(bodies) == 30
    bodies.clear()
    sql = "SELECT id, body_of(id) AS body FROM (SELECT id FROM orders ORDER BY time_next, id DESC LIMIT 2)"
    assert ask(filled, sql, NOW_MS) == [{"id": 1_000, "body": b"body 999"}, {"id": 999, "body": b"body 998"}]
    assert sum(bodies) == 2
    bodies.clear()
    assert ask(filled, "SELECT sum(body_bytes) s FROM orders", NOW_MS) == [{"s": 10 * 6 + 90 * 7 + 900 * 8}]
    assert bodies == []


def test_only_the_columns_in_use_are_made(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with_deliveries: list[bool] = []
    original = Snapshot.chunks

    def chunks(self: Snapshot, topic_id: int | None, **options: Any) -> Any:
        with_deliveries.append(options["with_deliveries"])
        return original(self, topic_id, **options)

    monkeypatch.setattr(Snapshot, "chunks", chunks)
    ask(filled, "SELECT count(*), max(deliver_at) FROM orders", NOW_MS)
    ask(filled, "SELECT count(*) FROM orders WHERE state = 'acked'", NOW_MS)
    assert with_deliveries == [False, True]


def test_filters_that_the_scan_applies_are_exact(filled: Store) -> None:
    def count(where: str) -> int:
        return int(ask(filled, f"SELECT count(*) AS n FROM orders WHERE {where}", NOW_MS)[0]["n"])

    assert count("id = 5") == 1
    assert count("id IN (1, 2, 5000)") == 2
    assert count("id BETWEEN 10 AND 19 AND priority = 50") == 10
    assert count("id < 3 OR id > 999") == 3
    assert count("state = 'ready' AND topic = 'orders'") == 1_000
    assert count("state <> 'ready'") == 0
    assert count("state LIKE 'r%' AND \"group\" IS NULL") == 1_000
    assert count('"group" IS NOT NULL') == 0
    assert count("time_acked IS NULL AND deliver_at = time_created") == 1_000
    assert count("deliver_at >= '2030-03-17 17:46:40+00'") == 1_000
    assert count("deliver_at > '2030-03-17 17:46:40+00'") == 0
    assert count("time_next < '2030-03-17 17:46:40+00'") == 0
    assert count("body = 'body 3'") == 1


def test_topics_need_no_lucky_names(store: Store) -> None:
    for number, name in enumerate(("a.b", "select", "messages", "Case", "case", "9-lives"), 1):
        topic = store.topics.open(name, NOW_MS)
        store.produce.ingest(send(topic, [b"x"] * number), NOW_MS)

    def count(table: str) -> int:
        return int(ask(store, f"SELECT count(*) AS n FROM {table}", NOW_MS)[0]["n"])

    assert [count(f'"{name}"') for name in ("a.b", "select", "9-lives")] == [1, 2, 6]
    assert count("messages") == 21
    assert count("messages WHERE topic = 'messages'") == 3
    assert count('"CASE"') == 4
    assert count("messages WHERE topic = 'case'") == 5


def test_limits_cut_the_answer_and_say_so(filled: Store) -> None:
    _, cut = answer_to(job(filled, "SELECT id FROM orders ORDER BY id", NOW_MS, limit=10))
    assert (cut["rows"], cut["truncated"]) == ([[n] for n in range(1, 11)], True)
    _, whole = answer_to(job(filled, "SELECT id FROM orders ORDER BY id LIMIT 10", NOW_MS, limit=10))
    assert (whole["rows"], whole["truncated"]) == (cut["rows"], False)
    payload = run_job(job(filled, "SELECT id, body FROM orders", NOW_MS, max_bytes=2_000))[16:]
    body = msgspec.msgpack.decode(payload)
    assert body["truncated"]
    assert 1_500 < len(payload) <= 2_000


def test_values_have_their_types(filled: Store) -> None:
    sql = """SELECT sum(id) AS huge, 1.50 AS exact, 2::DOUBLE AS float, true AS yes, NULL AS none, 'x'::BLOB AS blob,
        DATE '2031-05-01' AS day, TIME '09:30' AS clock, TIMESTAMP '2031-05-01 09:30:00' AS local,
        TIMESTAMPTZ '2031-05-01 09:30:00+02' AS moment, [1, NULL] AS list, {'a': 1.5, 'b': DATE '2031-05-01'} AS pair,
        INTERVAL 3 DAY AS span, 170141183460469231731687303715884105727::HUGEINT AS large FROM orders"""
    _, body = answer_to(job(filled, sql, NOW_MS))
    names = [column["name"] for column in body["columns"]]
    found = dict(zip(names, body["rows"][0], strict=True))
    assert found.pop("moment").isoformat() == "2031-05-01T07:30:00+00:00"
    assert found == {
        "huge": 500_500,
        "exact": "1.50",
        "float": 2.0,
        "yes": True,
        "none": None,
        "blob": b"x",
        "day": "2031-05-01",
        "clock": "09:30:00",
        "local": "2031-05-01T09:30:00",
        "list": [1, None],
        "pair": {"a": "1.5", "b": "2031-05-01"},
        "span": "0 months 3 days 0 s",
        "large": "170141183460469231731687303715884105727",
    }
    assert body["columns"][0] == {"name": "huge", "type": "HUGEINT"}


def streamed(store: Store, sql: str, **changes: Any) -> tuple[Any, bool, int]:
    """The table, whether it is cut off, and the size of the answer."""
    work = Sql(sql, changes.pop("limit", 100_000), stream=True)
    kind, body = answer_to(job(store, sql, NOW_MS, work=work, **changes))
    assert kind == FrameType.QUERY_OK, body
    return (
        pyarrow.ipc.open_stream(body["stream"]).read_all(),
        body["truncated"],
        len(msgspec.msgpack.encode(body)),
    )


def test_a_stream_has_the_same_rows(filled: Store) -> None:
    sql = 'SELECT id, topic, state, "group", deliver_at, body FROM orders ORDER BY id'
    table, truncated, _ = streamed(filled, sql)
    assert (table.num_rows, truncated) == (1_000, False)
    plain = ask(filled, sql, NOW_MS)
    columns = {name: table.column(name).to_pylist() for name in ("id", "topic", "state", "group", "body")}
    assert columns == {name: [row[name] for row in plain] for name in columns}
    assert not any(pyarrow.types.is_dictionary(field.type) for field in table.schema)


@pytest.mark.parametrize("limit", [1, 1_023, 1_024, 1_025, 2_999])
def test_a_stream_ends_at_its_limit(filled: Store, limit: int) -> None:
    table, truncated, _ = streamed(filled, "SELECT * FROM range(3000) AS n(n)", limit=limit)
    assert (table.column("n").to_pylist(), truncated) == (list(range(limit)), True)
    assert streamed(filled, f"SELECT * FROM range({limit})", limit=limit)[1] is False


@pytest.mark.parametrize("max_bytes", [2_000, 20_000, 100_000])
def test_a_stream_fits_into_its_answer(filled: Store, max_bytes: int) -> None:
    sql = "SELECT n, repeat('x', 100) || n AS text, [n, n] AS list FROM range(3000) AS n(n)"
    table, truncated, size = streamed(filled, sql, max_bytes=max_bytes)
    assert truncated
    assert table.column("n").to_pylist() == list(range(table.num_rows))
    assert max_bytes / 4 < size <= max_bytes


def test_columns_that_fit_into_no_answer(filled: Store) -> None:
    sql = f"SELECT {', '.join(f'1 AS column_{n}' for n in range(100))}"
    kind, body = answer_to(job(filled, sql, NOW_MS, work=Sql(sql, 1, stream=True), max_bytes=2_000))
    assert (kind, body["code"]) == (FrameType.ERROR, "bad_query")
    assert "fewer" in body["message"]


def test_the_columns_are_documented_and_described(filled: Store) -> None:
    described = [row["column_name"] for row in ask(filled, "DESCRIBE messages", NOW_MS)]
    page = (Path(__file__).resolve().parents[4] / "docs/how-to/query.md").read_text(encoding="utf-8")
    assert set(described) == {
        *TABLE_COLUMNS,
        *("key", "order_key", "headers", "body", "body_bytes", "dead_reason"),
    }
    assert [name for name in described if f"| `{name}` |" not in page] == []


def test_the_process_answers_with_a_whole_frame(filled: Store) -> None:
    asked = msgspec.msgpack.encode(job(filled, "SELECT count(*) FROM orders", NOW_MS))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "timerlog.query"],
        input=asked,
        capture_output=True,
        timeout=60,
        check=True,
    )
    reader = FrameReader(1 << 20)
    reader.feed(done.stdout)
    frame = reader.next_frame()
    assert frame is not None
    assert (frame.type, frame.correlation) == (FrameType.QUERY_OK, 3)
    assert msgspec.msgpack.decode(frame.payload)["rows"] == [[1_000]]
    assert done.stderr == b""


def test_log_columns_know_no_message_0(filled: Store) -> None:
    assert ask(filled, "SELECT body_of(0) a, body_of(-5) b, body_of(1000000000000) c", NOW_MS) == [
        {"a": None, "b": None, "c": None}
    ]
