"""Good rows, gathered until they are enough for a run, and then as the columns that ``timerlog.bulk.write`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tickwheel.spark.writing.columns import Checked, Mask
from timerlog.bulk.write import Columns, Plan, Texts, Topics

_TEXTS = ("body", "key", "headers", "order_key")


class Gathered:
    """Takes checked batches; ``take`` gives all of them and begins anew."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = self.bytes = 0
        self._topics: dict[str, int] = {}
        self._topic_of: list[npt.NDArray[np.uint16]] = []
        self._times_ms: list[npt.NDArray[np.int64]] = []
        self._priorities: list[Any] = []
        self._texts: dict[str, list[Any]] = {name: [] for name in _TEXTS}

    def add(self, found: Checked) -> None:
        """The good rows of a batch."""
        keep = None if not found.reasons.any() else found.reasons == 0
        times_ms = _kept(found.deliver_at_ms, keep)
        if not len(times_ms):
            return
        self.rows += len(times_ms)
        self.bytes += 16 * len(times_ms)
        self._times_ms.append(times_ms)
        of = _kept(found.topic_of, keep)
        # Only topics of good rows: those of the others may have names that are not allowed.
        used = np.unique(of)
        places = np.zeros(len(found.topics), np.uint16)
        for number in used.tolist():
            places[number] = self._topics.setdefault(found.topics[number], len(self._topics))
        self._topic_of.append(places[of])
        if found.priority is not None:
            self._priorities.append(_filtered(found.priority, keep))
        for name in _TEXTS:
            column = getattr(found, name)
            if column is not None:
                column = _filtered(column, keep)
                self._texts[name].append(column)
                self.bytes += column.nbytes

    def take(self, plan: Plan) -> tuple[Topics, Columns]:
        """Everything so far. Each list is let go of as soon as it is one piece: a task's memory is bounded."""
        times_ms, self._times_ms = np.concatenate(self._times_ms), []
        topics = Topics(list(self._topics), np.concatenate(self._topic_of))
        texts = {name: self._take_texts(name) for name in _TEXTS}
        body = texts["body"]
        assert body is not None
        columns = Columns(
            deliver_at_ms=times_ms,
            bodies=body,
            keys=texts["key"],
            headers=texts["headers"],
            orders=texts["order_key"],
            priorities=self._take_priorities(plan, topics),
        )
        self._clear()
        return topics, columns

    def _take_texts(self, name: str) -> Texts | None:
        parts = self._texts.pop(name)
        if not parts:
            return None
        column = pa.concat_arrays(parts)
        del parts
        return as_texts(column)

    def _take_priorities(self, plan: Plan, topics: Topics) -> npt.NDArray[np.uint8] | None:
        if not self._priorities:
            return None
        given = pa.concat_arrays(self._priorities)
        if given.null_count == len(given):
            return None
        usual = topics.each([plan.topics[name].priority for name in topics.names], np.uint8)
        return np.asarray(pc.coalesce(given, pa.array(usual).cast(pa.int64()))).astype(np.uint8)


def as_texts(column: Any) -> Texts:
    """A column of ``large_binary`` without copying its bytes; NULL is empty."""
    if column.null_count:
        column = column.fill_null(b"")  # a NULL may have bytes of its own
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    return Texts(
        at, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    )


def _kept(array: npt.NDArray[Any], keep: Mask | None) -> npt.NDArray[Any]:
    return array if keep is None else array[keep]


def _filtered(column: Any, keep: Mask | None) -> Any:
    return column if keep is None else column.filter(pa.array(keep))
