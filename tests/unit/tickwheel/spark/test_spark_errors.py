"""Our errors inside of those of Spark."""

from __future__ import annotations

from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.spark.errors import RowsRejected, SparkError, understood


def test_our_errors_are_found_in_those_of_spark() -> None:
    text = "[PYTHON_EXCEPTION] …\n  File x\ntickwheel.spark.errors.{}: [{}] It went wrong. Do this.\n SQLSTATE: 38000"
    for cls in (SourceError, PositionLost, RowsRejected):
        error = understood(RuntimeError(text.format(cls.__name__, cls.code)))
        assert type(error) is cls
        assert (error.code, error.message) == (cls.code, "It went wrong. Do this.")
    other = understood(
        RuntimeError("tickwheel.protocol.errors.NotConnected: [not_connected] Nobody answers.")
    )
    assert type(other) is SparkError
    assert understood(RuntimeError("something else")) is None
