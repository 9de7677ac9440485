"""Asks a store with SQL, in this process, and what it should answer, read plainly row by row."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tests.support.native.frames import frame
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import SendColumns, encode_send, pack_column
from timerlog.layout import DeliveryState, MessageState
from timerlog.query.columns import IN_A_CHAIN
from timerlog.query.worker import Job, Sql, run_job
from timerlog.readers.snapshot import describe
from timerlog.store import Store


def job(store: Store, sql: str, now_ms: int, *, limit: int = 100_000, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "description": describe(store.log, store.tables, now_ms),
        "work": Sql(sql, limit),
        "max_bytes": 1 << 24,
        "timeout_s": 60,
        "correlation": 3,
        "answer_type": FrameType.QUERY_OK,
        "error_type": FrameType.ERROR,
    }
    return Job(**fields | changes)


def answer_to(asked: Job) -> tuple[int, dict[str, Any]]:
    """The type and the body of the answering frame."""
    answered = run_job(asked)
    return answered[8], msgspec.msgpack.decode(answered[16 : _end(answered)])


def damaged_of(asked: Job) -> npt.NDArray[np.uint64]:
    """The messages of which a query says that they are damaged."""
    answered = run_job(asked)
    return np.frombuffer(answered, "<u8", offset=_end(answered))


def _end(answered: bytes) -> int:
    return 16 + int.from_bytes(answered[:4], "little")


def ask(store: Store, sql: str, now_ms: int, **changes: Any) -> list[dict[str, Any]]:
    """The rows of a query that must succeed; times are epoch milliseconds."""
    kind, body = answer_to(job(store, sql, now_ms, **changes))
    assert kind == FrameType.QUERY_OK, body
    names = [column["name"] for column in body["columns"]]
    return [dict(zip(names, map(_plain, row), strict=True)) for row in body["rows"]]


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1_000) if hasattr(value, "timestamp") else value


def send_all(
    store: Store,
    topic_id: int,
    bodies: list[bytes],
    times_ms: list[int],
    keys: list[bytes],
    headers: list[bytes],
    now_ms: int,
) -> None:
    """One SEND frame with every column; an empty key or headers: none."""
    columns = SendColumns(
        bodies=bodies,
        deliver_at_ms=pack_column("q", times_ms),
        priority=bytes(index % 256 for index in range(len(bodies))),
        keys=keys,
        headers=headers,
    )
    store.produce.ingest(frame(FrameType.SEND, 1, encode_send(topic_id, columns)), now_ms)


def expected_rows(store: Store, now_ms: int) -> list[dict[str, Any]]:
    """What ``messages`` holds, but for what lies in the log, by plain look-ups in the store's own tables."""
    found = []
    for message_id in range(1, store.tables.next_id):
        row = store.tables.rows[message_id]
        topic = store.tables.topics.get(int(row["topic_id"]))
        if row["state"] == MessageState.NONE or topic is None:
            continue
        views = []
        for group_id in topic.groups.values():
            group = store.tables.groups[group_id]
            seq = int(row["topic_seq"])
            arrived = seq < int(store.tables.native.topics[topic.record.topic_id].count)
            arrived = arrived and int(topic.arrivals.items[seq]["id"]) == message_id
            if arrived and seq < group.record.start_seq:
                continue
            known = arrived and seq < group.deliveries.capacity
            views.append((group.record.name, group.deliveries.items[seq] if known else None))
        for name, delivery in views or [(None, None)]:
            found.append(_expected(message_id, row, topic.record.name, name, delivery, now_ms))
    return found


def _expected(
    message_id: int, row: Any, topic: str, group: str | None, delivery: Any, now_ms: int
) -> dict[str, Any]:
    state = _expected_state(row, delivery, now_ms)
    time_next = None
    if state in ("scheduled", "ready"):
        time_next = int(row["deliver_at_ms"])
    elif state in ("leased", "waiting"):
        time_next = int(delivery["time_ms"])
    return {
        "id": message_id,
        "topic": topic,
        "group": group,
        "priority": int(row["priority"]),
        "state": state,
        "epoch": 0 if delivery is None else int(delivery["epoch"]),
        "attempts": 0 if delivery is None else int(delivery["epoch"]) - int(delivery["base_epoch"]),
        "time_next": time_next,
        "time_acked": int(delivery["time_ms"]) if state == "acked" else None,
        "time_created": int(row["created_ms"]),
        "deliver_at": int(row["deliver_at_ms"]),
    }


def _expected_state(row: Any, delivery: Any, now_ms: int) -> str:
    known = DeliveryState.UNTOUCHED if delivery is None else DeliveryState(delivery["state"])
    if known in (DeliveryState.ACKED, DeliveryState.DEAD):
        return known.name.lower()
    if row["state"] != MessageState.READY or known == DeliveryState.UNTOUCHED:
        return MessageState(row["state"]).name.lower()
    if known == DeliveryState.LEASED and delivery["time_ms"] > now_ms and not delivery["flags"] & IN_A_CHAIN:
        return "leased"
    return "waiting"
