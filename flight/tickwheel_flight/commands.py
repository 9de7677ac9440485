"""What a reader asks for: a JSON object, in a FlightDescriptor's command or in the body of an action."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from tickwheel.arrow.columns import TableName
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.event_table import Offset
from tickwheel.arrow.options import ReadOptions, chosen_columns, read_options
from tickwheel.protocol.limits import MAX_TIME_MS
from timerlog.readers.events import EVENTS

MAX_COMMAND_BYTES: Final = 1 << 20
_SHOWN_CHARS: Final = 200

_T = TypeVar("_T")


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table, and what of it. ``columns``: all that the reader may see where none is named. ``filters``: conditions
    that each row must meet. ``start`` and ``end``: positions by log, between which events are read; all that is
    committed where they are not given. The others are the options of ``format("tickwheel")``."""

    table: TableName = "messages"
    columns: list[str] = []
    filters: list[list[Any]] = []
    committed: bool = True
    rows_per_partition: int | None = None
    events: list[str] = []
    starting: Literal["earliest", "latest"] | Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] = "earliest"
    fail_on_data_loss: bool = True
    start: Offset | None = None
    end: Offset | None = None
    limit_rows: int | None = None

    def options(self, directory: Path) -> ReadOptions:
        """The same as options of the data source. Raises ``SourceError``."""
        chosen_columns(self.columns, self.table)  # before they are joined
        if self.table == "messages" and (self.start or self.end or self.limit_rows or self.events):
            raise SourceError(
                "start, end, limit_rows and events are of the table events.", advice="Leave them out."
            )
        unknown = [name for name in self.events if name not in EVENTS.values()]
        if unknown:
            raise SourceError(f"There is no event {unknown[0]!r}: use {', '.join(EVENTS.values())}.")
        wanted = {
            "path": str(directory),
            "table": self.table,
            "columns": ",".join(self.columns),
            "filters": msgspec.json.encode(self.filters).decode(),
            "committed": str(self.committed).lower(),
            "events": ",".join(self.events),
            "startingOffsets": str(self.starting),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        if self.rows_per_partition is not None:
            wanted["rowsPerPartition"] = str(self.rows_per_partition)
        return read_options(wanted)


class ArchiveCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that all groups were done with before a time, as an archive has them. ``archive_sizes``: only their ids,
    topics and bytes. ``topics``: with all shards; None: all topics."""

    table: Literal["archive", "archive_sizes"]
    done_before_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
    states: Annotated[list[Literal["acked", "dead"]], msgspec.Meta(min_length=1)]
    topics: list[str] | None = None
    rows_per_partition: Annotated[int, msgspec.Meta(ge=1)] = 500_000


class _Named(msgspec.Struct, frozen=True):
    table: str = ""


def parse_command(packed: bytes) -> Command:
    """Raises ``SourceError``."""
    return _decoded(packed, Command)


def parse_table(packed: bytes) -> Command | ArchiveCommand:
    """The same, also of an archive. Raises ``SourceError``."""
    is_archive = _decoded(packed, _Named).table in ("archive", "archive_sizes")
    return _decoded(packed, ArchiveCommand) if is_archive else _decoded(packed, Command)


def _decoded(packed: bytes, kind: type[_T]) -> _T:
    if len(packed) > MAX_COMMAND_BYTES:
        raise SourceError(f"The command has {len(packed)} bytes, and may have {MAX_COMMAND_BYTES}.")
    try:
        return msgspec.json.decode(packed or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(
            f"The command cannot be read: {str(error)[:_SHOWN_CHARS]}.",
            advice='Send a JSON object such as {"table": "messages", "columns": ["id", "topic"]}.',
        ) from None
