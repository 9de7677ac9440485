"""Errors of queries."""

from __future__ import annotations

from tickwheel.protocol.error_base import TickwheelError


class BadQuery(TickwheelError):
    """A query was refused; the message is that of the query engine."""

    code = "bad_query"
    advice = "Each topic is a table, `messages` is all of them; `describe messages` lists the columns."


class QueryTimeout(TickwheelError):
    """A query took longer than it may, and was ended."""

    code = "query_timeout"
    advice = "Ask for less (fewer columns, a WHERE), or give it a longer timeout."


class TooManyQueries(TickwheelError):
    """Too many queries wait for their turn already."""

    code = "too_many_queries"
    advice = "Ask again when others are done: the broker runs only a few queries at a time."
    retryable = True


class QueryUnavailable(TickwheelError):
    """The broker cannot query, because DuckDB is not installed."""

    code = "query_unavailable"
    advice = "Install what it needs where the broker runs: pip install 'tickwheel[query]'."


class QueryFailed(TickwheelError):
    """The process of a query ended without an answer."""

    code = "query_failed"
    advice = "See the broker's log for the details; a query that needs much memory should ask for less."
