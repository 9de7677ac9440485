"""Keeping disk space for what was accepted: nothing is accepted that a full disk could keep from its consumers."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from timerlog.engine.needs import Needs
from timerlog.engine.state import Core
from timerlog.errors import DiskFull
from timerlog.files.holes import PAGE_BYTES
from timerlog.layout import MAX_BATCH

#: For how much of what sends will need there is room at a time.
_AHEAD_BYTES: Final = 1024 * 1024


class Reserving(Core):
    _needs: Needs
    #: How much of the reserve is spoken for, at most.
    _promised_bytes: int
    #: The size of the last checkpoint: of everything small.
    _small_bytes: int

    def _make_reserving(self) -> None:
        self._needs = Needs(self.tables)
        self._promised_bytes = self._small_bytes = 0
        # The first send asks.
        self._native.rows_allocated = self.tables.next_id

    @property
    def needed_bytes(self) -> int:
        """What accepted messages may still need."""
        pending_enqueue = self.tables.next_id - self._enqueued_id
        return self._needs.of_all(self.log, self.wheel, pending_enqueue, self._small_bytes)

    def _promise(self, bytes_needed: int) -> None:
        """Holds so much on top of what is needed already. Raises ``DiskFull``."""
        self._promised_bytes += bytes_needed
        if self._promised_bytes > self.reserve.size_bytes and not self.reserve.is_at_limit:
            self._promised_bytes = self.needed_bytes + bytes_needed
            self.reserve.cover(self._promised_bytes)

    def _promise_rows(self, rows: int) -> None:
        """Makes room for messages with ids below ``rows``, and for all that will become of them; if it can, for some
        more. Raises ``DiskFull``."""
        each = self._needs.of_a_message()
        count = rows - self.tables.next_id
        more = MAX_BATCH if self.reserve.is_at_limit else min(MAX_BATCH, _AHEAD_BYTES // each)
        try:
            self._promise((count + more) * each)
        except DiskFull:
            self._promise(count * each)
            more = 0
        self.tables.ensure_rows(rows)
        self._native.rows_allocated = min(int(self._native.rows_allocated), rows + more)

    def _promise_topics(self, topics: int) -> None:
        """Makes room for new topics, each with its first group. Raises ``DiskFull``."""
        self._promise(topics * 4 * PAGE_BYTES)

    def settle_reserve(self) -> None:
        """Makes the reserve as large as it should be now, as far as the disk lets it."""
        promised = int(self._native.rows_allocated) - self.tables.next_id
        self._promised_bytes = self.needed_bytes + max(0, promised) * self._needs.of_a_message()
        with suppress(DiskFull):
            self.reserve.cover(self._promised_bytes)
        self.reserve.trim(self._promised_bytes)
