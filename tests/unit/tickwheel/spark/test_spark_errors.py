"""Our errors inside of those of Spark."""

from __future__ import annotations

from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.errors import Forbidden, LoginRequired, NotConnected
from tickwheel.spark.errors import RowsRejected, SparkError, understood


def test_our_errors_are_found_in_those_of_spark() -> None:
    text = "[PYTHON_EXCEPTION] …\n  File x\ntickwheel.spark.errors.{}: [{}] It went wrong. Do this.\n SQLSTATE: 38000"
    for cls in (SourceError, PositionLost, RowsRejected):
        error = understood(RuntimeError(text.format(cls.__name__, cls.code)))
        assert type(error) is cls
        assert (error.code, error.message) == (cls.code, "It went wrong. Do this.")
    later = understood(RuntimeError("tickwheel.spark.errors.OfALaterVersion: [new] It went wrong."))
    assert type(later) is SparkError
    assert later.code == "new"
    assert understood(RuntimeError("something else")) is None
    assert understood(RuntimeError("tickwheel.spark.somewhere.Unknown: what is this?")) is None
    assert understood(RuntimeError("tickwheel.protocol.errors.base.Mapping: what is this?")) is None


def test_what_the_broker_told_a_task_is_an_error_of_the_client() -> None:
    """Its text has no code, so the class tells it."""
    text = (
        "[PYTHON_EXCEPTION] …\ntickwheel.protocol.errors.security.{}: Token 'a' may not. Do this.\n\tat java"
    )
    for cls in (Forbidden, LoginRequired):
        error = understood(RuntimeError(text.format(cls.__name__)))
        assert type(error) is cls
        assert (error.code, error.message, str(error)) == (cls.code, *["Token 'a' may not. Do this."] * 2)
    mine = NotConnected("Nobody answers.")
    assert understood(mine) is mine


def test_the_last_error_that_is_understood_counts() -> None:
    lines = (
        "tickwheel.arrow.errors.SourceError: [bad_source] First.",
        "tickwheel.spark.errors.RowsRejected: [rows_rejected] Then.",
        "tickwheel.spark.somewhere.Unknown: what is this?",
    )
    error = understood(RuntimeError("\n".join(lines)))
    assert type(error) is RowsRejected
    assert error.message == "Then."
