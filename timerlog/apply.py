"""What each control record does to the tables.

Used twice: by the store, right after it has handed the record to the log, and by recovery, when it reads the record
back. So a running store and a replayed one cannot differ. Everything is set to absolute values: applying a record
again, on tables that already hold it, changes nothing in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from native import Buffer, ffi, lib
from timerlog.errors import BadSettings, StoreError
from timerlog.layout import (
    PUT_HEAD,
    RUN,
    DocumentRecord,
    GroupRecord,
    MessageState,
    RecordType,
    TopicRecord,
)
from timerlog.settings import StoreSettings
from timerlog.tables import Tables

Runs = npt.NDArray[Any]  # of layout.RUN


def runs_pointer(runs: Runs) -> Any:
    return ffi.cast("tw_run *", runs.ctypes.data)


def _last(runs: Runs) -> int:
    """The value behind the last one of any run."""
    return int((runs["first"] + runs["count"]).max(initial=0))


def _check(result: int, what: str) -> None:
    if result < 0:
        raise StoreError(f"a {what} record names messages that do not exist")


@dataclass(slots=True)
class Applier:
    """Applies control records to ``tables``; ``tick_ms`` is the last tick that the log knows."""

    tables: Tables
    settings: StoreSettings
    tick_ms: int = 0

    def apply(self, record: int, aux: int, payload: Buffer) -> None:
        """One record as read from the log. MARK and END change nothing."""
        match record:
            case RecordType.PUT:
                head = np.frombuffer(payload, PUT_HEAD, 1)[0]
                runs = np.frombuffer(payload, RUN, int(head["runs"]), PUT_HEAD.itemsize)
                self.put(aux, int(head["first_seq"]), int(head["tick_ms"]), runs)
            case RecordType.LEASE:
                self.lease(aux, 0, np.frombuffer(payload, RUN))
            case RecordType.ACK:
                self.ack(aux, np.frombuffer(payload, RUN))
            case RecordType.RELEASE:
                self.release(aux, np.frombuffer(payload, RUN))
            case RecordType.CANCEL:
                self.set_state(np.frombuffer(payload, np.uint64), MessageState.CANCELLED)
            case RecordType.RESCHEDULE:
                self.reschedule(np.frombuffer(payload, RUN))
            case RecordType.DAMAGED:
                self.set_state(np.frombuffer(payload, np.uint64), MessageState.DAMAGED)
            case RecordType.TOPIC:
                self.topic(msgspec.msgpack.decode(payload, type=TopicRecord))
            case RecordType.GROUP:
                self.group(msgspec.msgpack.decode(payload, type=GroupRecord))
            case RecordType.DOCUMENT:
                self.document(msgspec.msgpack.decode(payload, type=DocumentRecord))
            case RecordType.MARK | RecordType.END:
                pass
            case _:
                raise StoreError(f"a record of unknown type {record}")

    def put(self, topic_id: int, first_seq: int, tick_ms: int, runs: Runs) -> None:
        self.tables.ensure_arrivals(topic_id, first_seq + int(runs["count"].sum()))
        pointer = runs_pointer(runs)
        _check(lib.tw_apply_put(self.tables.native, topic_id, first_seq, pointer, len(runs)), "PUT")
        self.tick_ms = max(self.tick_ms, tick_ms)

    def lease(self, group_id: int, holder: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, _last(runs))
        pointer = runs_pointer(runs)
        _check(lib.tw_apply_lease(self.tables.native, group_id, holder, pointer, len(runs)), "LEASE")

    def ack(self, group_id: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, _last(runs))
        _check(lib.tw_apply_ack(self.tables.native, group_id, runs_pointer(runs), len(runs)), "ACK")

    def release(self, group_id: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, _last(runs))
        _check(lib.tw_apply_release(self.tables.native, group_id, runs_pointer(runs), len(runs)), "RELEASE")

    def set_state(self, ids: npt.NDArray[np.uint64], state: MessageState) -> None:
        self._check_ids(ids)
        self.tables.rows["state"][ids] = state

    def reschedule(self, runs: Runs) -> None:
        ids = runs["first"]
        self._check_ids(ids)
        self.tables.rows["deliver_at_ms"][ids] = runs["time_ms"]
        self.tables.rows["version"][ids] = runs["epoch"]

    def _check_ids(self, ids: npt.NDArray[np.uint64]) -> None:
        if len(ids) and (int(ids.max()) >= self.tables.next_id or int(ids.min()) == 0):
            raise StoreError("a record names a message that does not exist")

    def topic(self, record: TopicRecord) -> None:
        if not 0 < record.topic_id < self.tables.native.topics_capacity:
            raise BadSettings(f"topic {record.name!r} has number {record.topic_id}: raise max_topics")
        self.tables.add_topic(record)

    def document(self, record: DocumentRecord) -> None:
        if record.content is None:
            self.tables.documents.pop(record.name, None)
        else:
            self.tables.documents[record.name] = record.content

    def group(self, record: GroupRecord) -> None:
        if not 0 < record.group_id < self.tables.native.groups_capacity:
            raise BadSettings(f"group {record.name!r} has number {record.group_id}: raise max_groups")
        settings = self.settings
        self.tables.add_group(record, settings.ack_wait_ms, settings.min_backoff_ms, settings.max_backoff_ms)
