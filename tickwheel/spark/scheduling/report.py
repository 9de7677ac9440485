"""What tasks tell the driver: counts, and some of the rows that were refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from tickwheel.spark.scheduling.result import BY_FLIGHT, Rejected, Staged
from tickwheel.spark.writing.columns import Checked, shown
from tickwheel.spark.writing.reasons import CODES, REASONS
from timerlog.bulk.write import Segment

#: So many rows of each reason a task tells of, and so many the driver keeps.
TASK_SAMPLES: Final = 20
KEPT_SAMPLES: Final = 200


class TaskReport(msgspec.Struct, kw_only=True):
    """What one task has done. ``counts``: refused rows by reason. ``staged``: how its files came to the broker, or, of
    many tasks, those of any."""

    rows: int = 0
    segments: list[Segment] = []
    counts: dict[str, int] = {}
    samples: list[Rejected] = []
    staged: Staged | None = None

    def refuse(self, batch: Any, found: Checked, partition: int, topic: str | None) -> None:
        """Takes note of the bad rows of the batch that follows those noted so far."""
        numbers = np.bincount(found.reasons, minlength=len(CODES))
        numbers[0] = 0
        for number in np.flatnonzero(numbers).tolist():
            code, rows = CODES[number], np.flatnonzero(found.reasons == number)
            known = self.counts.get(code, 0)
            self.counts[code] = known + len(rows)
            for row in rows[: max(0, TASK_SAMPLES - known)].tolist():
                self.samples.append(
                    Rejected(
                        reason=code,
                        detail=shown(batch, REASONS[code][0], row),
                        key=shown(batch, "key", row),
                        topic=shown(batch, "topic", row) or topic,
                        partition=partition,
                        row=self.rows + row,
                    )
                )


def merged(reports: Iterable[TaskReport]) -> TaskReport:
    """What all tasks have done together; segments by the numbers of their messages."""
    total = TaskReport()
    for one in reports:
        total.rows += one.rows
        total.segments += one.segments
        total.staged = BY_FLIGHT if BY_FLIGHT in (total.staged, one.staged) else one.staged
        total.samples += one.samples[: max(0, KEPT_SAMPLES - len(total.samples))]
        for code, count in one.counts.items():
            total.counts[code] = total.counts.get(code, 0) + count
    total.segments.sort(key=lambda segment: segment.first_id)
    return total
