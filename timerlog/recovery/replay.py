"""Reading records back: each does to the tables what it did when it was written.

Tables that hold some of it already come to the same state: history is repeated from the checkpoint on, as in ARIES
(C. Mohan et al., ACM TODS 17(1), 1992), and records set absolute values, so that nothing has to be undone.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tickwheel_native import ffi, lib
from timerlog.commitlog.reader import padded
from timerlog.commitlog.segments import ADDRESS_SPACE_BYTES
from timerlog.errors import DECODE_ERRORS, DamagedLog, StoreError
from timerlog.layout import RECORD_HEAD_BYTES, TRANSACTION_ID_BYTES, RecordType
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables

NEED_ROWS: Final = 12
NEED_DELIVERIES: Final = 15


class Contradiction(DamagedLog):
    """A record is whole, and makes no sense after those before it."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position


class Replayer:
    """Applies the records of a log that is mapped at ``base``."""

    def __init__(self, base: Any, tables: Tables, applier: Applier) -> None:
        self._base, self._tables, self._applier = base, tables, applier
        tables.native.log = ffi.cast("const uint8_t *", base)
        # Nothing is staged yet: every position is read from the segments.
        tables.native.staging_position = tables.native.log_readable = ADDRESS_SPACE_BYTES

    def apply(self, position: int, stop: int) -> None:
        """Applies the records from ``position`` to ``stop``, which are whole. Raises ``Contradiction``."""
        tables = self._tables
        at, need = ffi.new("uint64_t *", position), ffi.new("uint64_t *")
        while at[0] < stop:
            result = int(lib.tw_replay(tables.native, at, stop, need))
            if result == NEED_ROWS:
                tables.ensure_rows(max(int(need[0]), tables.messages.capacity + 1))
            elif result == NEED_DELIVERIES:
                group_id = int(need[0])
                tables.ensure_deliveries(group_id, tables.groups[group_id].deliveries.capacity + 1)
            elif result < 0:
                raise Contradiction(
                    int(at[0]), f"the message record at position {at[0]} contradicts the records before it"
                )
            elif result == 1:
                at[0] = self._apply_control(int(at[0]))
        assert at[0] == stop, "whole records end where the last of them ends"

    def _apply_control(self, position: int) -> int:
        head = ffi.buffer(ffi.cast("char *", self._base) + position, RECORD_HEAD_BYTES)
        _, count, record, _, _, aux = struct.unpack("<IIBBHI", head)
        start = ffi.cast("char *", self._base) + position + RECORD_HEAD_BYTES
        end = position + count
        try:
            if record == RecordType.TRANSACTION:
                self._apply_transaction(position + RECORD_HEAD_BYTES, end)
            else:
                self._applier.apply(record, aux, memoryview(ffi.buffer(start, count - RECORD_HEAD_BYTES)))
        except (
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            OverflowError,
            StoreError,
            *DECODE_ERRORS,
        ) as error:
            if isinstance(error, StoreError) and type(error) not in (StoreError, Contradiction):
                raise  # that has a name of its own: a limit that is too small, a newer format
            raise Contradiction(
                position, f"the record at position {position} contradicts those before it: {error}"
            ) from error
        return position + padded(int(count))

    def _apply_transaction(self, position: int, end: int) -> None:
        """The records inside, one by one: the checksum around them does not say that they are whole."""
        start = ffi.cast("char *", self._base) + position
        self._applier.transaction_id = bytes(ffi.buffer(start, TRANSACTION_ID_BYTES))
        inside = position + TRANSACTION_ID_BYTES
        counts, reason = ffi.new("uint64_t[256]"), ffi.new("int32_t *")
        whole_to = int(
            lib.tw_log_verify(ffi.cast("const uint8_t *", self._base), inside, end, counts, reason)
        )
        if whole_to != end or counts[RecordType.TRANSACTION]:
            raise Contradiction(whole_to, f"the transaction holds what is no record, at position {whole_to}")
        self.apply(inside, end)
