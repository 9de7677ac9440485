"""Reading records back: each does to the tables what it did when it was written.

Tables that hold some of it already come to the same state: history is repeated from the checkpoint on, as in ARIES
(C. Mohan et al., ACM TODS 17(1), 1992), and records set absolute values, so that nothing has to be undone.
"""

from __future__ import annotations

from tickwheel_native import log as native_log
from timerlog.commitlog.addresses import END_POSITION, LogAddresses
from timerlog.commitlog.reader import padded
from timerlog.errors import DECODE_ERRORS, DamagedLog, StoreError
from timerlog.layout import RECORD_HEAD_BYTES, RECORD_HEAD_STRUCT, TRANSACTION_ID_BYTES, RecordType
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables


class Contradiction(DamagedLog):
    """A record is whole, and makes no sense after those before it."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position


class Replayer:
    """Applies the records of a log that has these addresses."""

    def __init__(
        self, addresses: LogAddresses, tables: Tables, applier: Applier, *, keeps_keys: bool
    ) -> None:
        """``keeps_keys``: the key index holds all keys of what was replayed before, and shall hold those of what
        follows. Otherwise it is left alone."""
        self._addresses, self._tables, self._applier = addresses, tables, applier
        assert not tables.native.staging_bytes, "what is staged is not read from segments"
        tables.native.keeps_keys = keeps_keys
        tables.sparse.expect(min(tables.next_id, tables.messages.capacity))
        native_log.read_from(tables.native, addresses.pointer)
        # Nothing is staged yet: every position is read from the segments.
        tables.native.staging_position = tables.native.log_readable = END_POSITION

    def apply(self, position: int, stop: int) -> None:
        """Applies the records from ``position`` to ``stop``, which are whole. Raises ``Contradiction``."""
        tables = self._tables
        assert position % 8 == 0, "records begin at multiples of 8"
        assert position <= stop, "records end behind their beginning"
        while position < stop:
            result, position, need = native_log.replay(tables.native, position, stop)
            if result == native_log.NEED_ROWS:
                tables.ensure_rows(need, need - 1)
                assert need <= tables.native.rows_allocated, "a message that comes next has a row"
            elif result == native_log.NEED_DELIVERIES:
                tables.ensure_deliveries(need, tables.groups[need].deliveries.capacity + 1)
            elif result == native_log.NEED_KEYS:
                tables.keys.grow(need)
            elif result < 0:
                raise Contradiction(
                    position, f"the message record at position {position} contradicts the records before it"
                )
            elif result == 1:
                position = self._apply_control(position)
        assert position == stop, "whole records end where the last of them ends"

    def _apply_control(self, position: int) -> int:
        head = self._addresses.view(position, RECORD_HEAD_BYTES)
        _, count, record, _, _, aux = RECORD_HEAD_STRUCT.unpack(head)
        end = position + count
        try:
            if record == RecordType.TRANSACTION:
                self._apply_transaction(position + RECORD_HEAD_BYTES, end)
            else:
                start, size_bytes = position + RECORD_HEAD_BYTES, count - RECORD_HEAD_BYTES
                self._applier.apply(record, aux, self._addresses.view(start, size_bytes))
        except (
            AssertionError,
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
        self._applier.transaction_id = bytes(self._addresses.view(position, TRANSACTION_ID_BYTES))
        inside = position + TRANSACTION_ID_BYTES
        counts = native_log.new_counts()
        whole_to, _ = native_log.verify(self._addresses.pointer, inside, end, counts)
        if whole_to != end or counts[RecordType.TRANSACTION]:
            raise Contradiction(whole_to, f"the transaction holds what is no record, at position {whole_to}")
        self.apply(inside, end)
