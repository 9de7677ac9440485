"""The tables ``messages`` and ``events`` of a broker as Arrow record batches, from any machine.

>>> import tickwheel.arrow
>>> reader = tickwheel.arrow.messages("tickwheel://broker:7411", columns=["topic", "state"])
>>> reader.read_pandas()

Whatever takes a ``pyarrow.RecordBatchReader`` takes it: DuckDB, Polars, pandas. The broker needs ``tickwheel flight``
beside it (``tickwheel serve --flight``); here it takes ``pip install 'tickwheel[flight]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickwheel.errors import BadArgument, FlightMissing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["events", "messages"]


def messages(
    url: str | None = None,
    *,
    columns: Sequence[str] = (),
    filters: Sequence[Sequence[Any]] = (),
    committed: bool = True,
    token: str | None = None,
    token_file: str | Path | None = None,
    ca_file: str | Path | None = None,
) -> pa.RecordBatchReader:
    """The messages, one row for each group of their topic, as they are now.

    ``url``: of the broker, by default as for ``tickwheel.Client``, as are the token and the CA. ``columns``: all that
    may be read where none is named; body needs the right to consume. ``filters``: conditions that each row must meet,
    such as ``[("state", "=", "scheduled"), ("deliver_at", "<", "2031-05-01T00:00:00Z")]``; they are judged where the
    data is. ``committed``: False for what may be lost in a power loss, too.

    Raises ``SourceError``, Forbidden, ConnectionDenied, NotConnected, and these also while it is read; BadArgument,
    FlightMissing.
    """
    return _table(
        url=url,
        command={"table": "messages", "committed": committed},
        columns=columns,
        filters=filters,
        token=token,
        token_file=token_file,
        ca_file=ca_file,
    )


def events(
    url: str | None = None,
    *,
    columns: Sequence[str] = (),
    filters: Sequence[Sequence[Any]] = (),
    kinds: Sequence[str] = (),
    committed: bool = True,
    token: str | None = None,
    token_file: str | Path | None = None,
    ca_file: str | Path | None = None,
) -> pa.RecordBatchReader:
    """What has happened to messages, as far as the log still tells. ``kinds``: the events that are read, such as
    ``["sent", "acked"]``; all where none is named. The rest is as for `messages`."""
    return _table(
        url=url,
        command={
            "table": "events",
            "committed": committed,
            "events": kinds if isinstance(kinds, str) else list(kinds),
        },
        columns=columns,
        filters=filters,
        token=token,
        token_file=token_file,
        ca_file=ca_file,
    )


def _table(
    url: str | None,
    command: dict[str, Any],
    columns: Sequence[str],
    filters: Sequence[Sequence[Any]],
    token: str | None,
    token_file: str | Path | None,
    ca_file: str | Path | None,
) -> Any:
    for name, given in (("columns", columns), ("filters", filters), ("kinds", command.get("events", ()))):
        if isinstance(given, str):
            raise BadArgument(f"{name} is {given!r}.", advice=f"Give a list: {name}=[…].")
    if filters and isinstance(filters[0], str):
        raise BadArgument(
            "filters is one condition.", advice='Give a list of them: filters=[("state", "=", "acked")].'
        )
    try:
        from tickwheel.arrow.network import Flights, Table
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "numpy"):
            raise
        raise FlightMissing from error
    flights = Flights.of_broker(
        url,
        token=token,
        token_file=None if token_file is None else str(token_file),
        ca_file=None if ca_file is None else str(ca_file),
    )
    command |= {"columns": list(columns), "filters": [list(one) for one in filters]}
    return Table(flights, flights.plan(command)).reader()
