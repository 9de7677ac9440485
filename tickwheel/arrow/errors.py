"""What can go wrong with the tables ``messages`` and ``events``, as typed errors.

``code`` stands in square brackets at the head of the text: Spark and Arrow Flight report errors of other processes as
texts.
"""

from __future__ import annotations

from tickwheel.protocol.errors import TickwheelError


class DataError(TickwheelError):
    """Something went wrong between Tickwheel and a reader or writer of tables."""

    code = "data"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class SourceError(DataError):
    """An option of the data source, or a directory that it should read, cannot be used."""

    code = "bad_source"
    advice = "docs/how-to/spark.md lists the options."


class PositionLost(DataError):
    """The log does not hold the records at an offset any more: they were purged, or it is another log."""

    code = "position_lost"
    advice = "Start a new query with startingOffsets=earliest, or set failOnDataLoss=false to go on with what is left."
