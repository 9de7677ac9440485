"""Which pages of the tables hold nothing any more, and giving their disk space back.

A page that is given back reads as zeros and must never be written again: on a full disk the write would end the
process. So a page goes only when every item on it is gone for good, and items that are gone are never written: the
C functions look before they write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from timerlog.files.mapped_file import Region
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import HEADER_BYTES, UInt64Array
from timerlog.tables.table import Table
from timerlog.tables.tables import Tables, spans

#: Half a megabyte at a time, so that nothing that touches the file waits long.
_PAGES_A_STEP: Final = 128
#: To pass over so many empty ones takes longer than to ask the file system where something begins.
_MANY_PAGES: Final = 1 << 16

Pages = UInt64Array
Piece: TypeAlias = tuple[Region, int, int]  # and from which byte to which


class Reclaim:
    """Takes note of what is purged, and frees the pages that became empty by it."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows: list[Pages] = []
        #: By group: pages of its deliveries.
        self._deliveries: dict[int, list[Pages]] = {}
        #: By table: below which item everything was given back already.
        self._freed: dict[Table, int] = {}
        # A run that was interrupted may have left empty pages behind: the first one looks at all of them.
        self._sweeps_all = any(
            int(tables.native.topics[topic_id].purged_messages) for topic_id in tables.topics
        )

    @property
    def is_needed(self) -> bool:
        return bool(self._rows) or self._sweeps_all

    def note(self, ids: UInt64Array) -> None:
        """These messages are about to be forgotten."""
        if len(ids):
            assert ids.min() >= self._tables.messages.start, "what is there has an address"
            assert ids.max() < self._tables.next_id, "only what was sent is forgotten"
        rows = self._tables.rows[ids]
        self._rows.append(self._tables.messages.pages_of(ids))
        for topic_id in np.unique(rows["topic_id"]).tolist():
            if topic_id in self._tables.topics:
                self._note_deliveries(topic_id, rows["topic_seq"][rows["topic_id"] == topic_id])

    def _note_deliveries(self, topic_id: int, seqs: UInt64Array) -> None:
        pages: Pages | None = None
        for group_id in self._tables.topics[topic_id].groups.values():
            if pages is None:  # those of all groups have the same numbers
                pages = self._tables.groups[group_id].deliveries.pages_of(seqs)
            self._deliveries.setdefault(group_id, []).append(pages)

    def steps(self) -> Iterator[list[Piece]]:
        """What to free, a little at each step. A checkpoint of what was purged must be there."""
        rows, self._rows = self._rows, []
        deliveries, self._deliveries = self._deliveries, {}
        yield from self._free_below()
        if self._sweeps_all:
            self._sweeps_all = False
            yield from self._sweep()
            return
        if rows:
            yield from self._free(self._tables.messages, np.unique(np.concatenate(rows)), None)
        for group_id, pages in deliveries.items():
            group = self._tables.groups.get(group_id)
            if group is not None:
                unique = np.unique(np.concatenate(pages))
                yield from self._free(group.deliveries, unique, group.record.topic_id)

    def _sweep(self) -> Iterator[list[Piece]]:
        """All pages that may be empty, besides those below the first message that is there."""
        tables, native = self._tables, self._tables.native
        for span in spans(
            tables.gaps, int(native.first_id), tables.messages.capacity, tables.messages.capacity
        ):
            yield from self._sweep_range(tables.messages, *span, None)
        for group_id, group in list(tables.groups.items()):
            table, topic_id = group.deliveries, group.record.topic_id
            if tables.groups.get(group_id) is group:
                first = min(int(native.topics[topic_id].first_seq), table.capacity)
                yield from self._sweep_range(table, first, table.capacity, topic_id)

    def _sweep_range(self, table: Table, first: int, end: int, topic_id: int | None) -> Iterator[list[Piece]]:
        """A little at a time: between an old message and the others there may be years of empty pages."""
        start, stop = table.span(first, end)
        page, last = start // PAGE_BYTES, -(-stop // PAGE_BYTES)
        while page < last and table.region.is_open:
            if last - page > _MANY_PAGES:
                page = max(page, table.region.first_data(page * PAGE_BYTES) // PAGE_BYTES)
            pages = np.arange(page, min(page + _MANY_PAGES, last), dtype=np.uint64)
            yield from self._free(table, pages, topic_id)
            page += _MANY_PAGES

    def _free_below(self) -> Iterator[list[Piece]]:
        """What lies before the first message that is still there, in the MessageTable and in each topic."""
        tables, native = self._tables, self._tables.native
        for start, stop in spans(tables.gaps, 0, int(native.first_id), tables.messages.capacity):
            # A job whose ids lie there may come between two steps: the first message is one of its own then.
            yield from self._free_range(tables.messages, stop, start, lambda: int(native.first_id))
        for topic_id in list(tables.topics):
            topic, first = tables.topics.get(topic_id), int(native.topics[topic_id].first_seq)
            if topic is None:
                continue  # it was deleted meanwhile
            yield from self._free_range(topic.arrivals, first)
            for group_id in list(topic.groups.values()):
                group = tables.groups.get(group_id)
                if group is not None and not _in_chains(tables, group_id):
                    yield from self._free_range(group.deliveries, first)

    def _free_range(
        self, table: Table, end: int, start: int = 0, limit: Callable[[], int] | None = None
    ) -> Iterator[list[Piece]]:
        """Frees the pages that hold only items below ``end``, from ``start`` on, below which all was freed. ``limit``:
        asked at each step, nothing is freed from there on."""
        is_first = table not in self._freed
        start, end = max(start, self._freed.get(table, 0)), min(end, table.capacity)
        page = max(HEADER_BYTES, HEADER_BYTES + start * table.dtype.itemsize) // PAGE_BYTES
        last = (HEADER_BYTES + end * table.dtype.itemsize) // PAGE_BYTES
        if is_first and last - page > _MANY_PAGES:  # another process has freed years of it
            page = max(page, table.region.first_data(page * PAGE_BYTES) // PAGE_BYTES)
        while table.region.is_open:
            if limit is not None:
                end = min(end, limit())
                last = (HEADER_BYTES + end * table.dtype.itemsize) // PAGE_BYTES
            if page >= last:
                break
            stop = min(last, page + _PAGES_A_STEP)
            yield [(table.region, page * PAGE_BYTES, stop * PAGE_BYTES)]
            page = stop
        self._freed[table] = max(start, end)

    def _free(self, table: Table, pages: Pages, topic_id: int | None) -> Iterator[list[Piece]]:
        """Frees those of some pages that are empty and stay so; ``topic_id``: of a table of deliveries."""
        assert (pages[1:] > pages[:-1]).all(), "pages come in their order, each once"
        for start in range(0, len(pages), _PAGES_A_STEP):
            if topic_id is not None and topic_id not in self._tables.topics:
                return  # it was deleted meanwhile
            if not table.region.is_open:
                return  # its group was
            some = pages[start : start + _PAGES_A_STEP]
            free = some[[self._is_empty(table, int(page), topic_id) for page in some.tolist()]]
            runs = np.split(free, np.flatnonzero(np.diff(free) != 1) + 1)
            yield [
                (table.region, int(run[0]) * PAGE_BYTES, (int(run[-1]) + 1) * PAGE_BYTES)
                for run in runs
                if len(run)
            ]

    def _is_empty(self, table: Table, page: int, topic_id: int | None) -> bool:
        """Whether nothing is on a page, and nothing can come there."""
        first = (page * PAGE_BYTES - HEADER_BYTES) // table.dtype.itemsize
        end = -(-((page + 1) * PAGE_BYTES - HEADER_BYTES) // table.dtype.itemsize)
        if page == 0 or first < table.start or end > table.capacity:
            return False
        if bool(table.items[first:end].view(np.uint8).any()):
            return False
        if topic_id is None:
            return end <= self._tables.next_id
        arrivals = self._tables.topics[topic_id].arrivals.between(first, end)["id"]
        count = int(self._tables.native.topics[topic_id].count)
        return end <= count and not arrivals.any()


def _in_chains(tables: Tables, group_id: int) -> bool:
    """Whether messages wait for redelivery in a group: chains may still go through rows of purged ones."""
    group = tables.native.groups[group_id]
    return any(group.retry_lanes[word] for word in range(4)) or group.orders_count > 0
