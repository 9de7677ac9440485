"""Streaming queries of tests, run to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_STARTS = 8


def run_to_the_end(start: Callable[[], StreamingQuery]) -> list[int]:
    """How many rows each batch had. Spark gives a Python worker ten seconds to begin, which it does not get on a busy
    machine: then the query is started again, as its user would do it. Raises ``StreamingQueryException``."""
    for left in reversed(range(_STARTS)):
        query = start()
        try:
            query.awaitTermination()
            return [progress["numInputRows"] for progress in query.recentProgress]
        except StreamingQueryException as error:
            if not left or "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()
    raise AssertionError("unreachable")
