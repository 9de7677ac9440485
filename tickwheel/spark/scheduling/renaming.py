"""Columns of files under the names that messages have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.writing.columns import SINK_COLUMNS

T = TypeVar("T")
_ADVICE: Final = (
    "Use --rename when=deliver_at (rename={'when': 'deliver_at'}): the file's name, then the message's."
)


def parse_renames(pairs: Iterable[str]) -> dict[str, str]:
    """``when=deliver_at`` pairs: the names of columns, and what messages call them. Raises ``SourceError``."""
    renames: dict[str, str] = {}
    for pair in pairs:
        name, equals, field = pair.rpartition("=")  # a file's name may hold the sign, a message's does not
        if not equals or not name or not field:
            raise SourceError(f"{pair!r} renames nothing.", advice=_ADVICE)
        if name in renames:
            raise SourceError(f"The column {name} is renamed twice.", advice=_ADVICE)
        renames[name] = field.strip()
    return renames


def check_renames(renames: Mapping[str, str]) -> None:
    """What can be said without the columns. Raises ``SourceError``."""
    if not isinstance(renames, Mapping):
        raise SourceError(f"rename is {renames!r}.", advice=_ADVICE)
    taken: dict[str, str] = {}
    for name, field in renames.items():
        if field not in SINK_COLUMNS:
            raise SourceError(
                f"{name} cannot be renamed to {field}: a message has no such column.",
                advice=f"A message has {', '.join(SINK_COLUMNS)}.",
            )
        if field in taken:
            raise SourceError(f"{taken[field]} and {name} cannot both be {field}.", advice=_ADVICE)
        taken[field] = name


def renamed(columns: Mapping[str, T], renames: Mapping[str, str]) -> dict[str, T]:
    """The columns under their names in messages, in their order. Raises ``SourceError``."""
    found = ", ".join(columns) or "none"
    missing = [name for name in renames if name not in columns]
    if missing:
        raise SourceError(
            f"There is no column {', '.join(missing)} to rename. The columns are: {found}.",
            advice="Name a column as the file spells it.",
        )
    twice = [field for field in renames.values() if field in columns and field not in renames]
    if twice:
        raise SourceError(
            f"There is a column {', '.join(twice)} beside the column that is renamed to it. The columns are: {found}.",
            advice="Rename one of the two only, or leave the other out of the file.",
        )
    return {renames.get(name, name): value for name, value in columns.items()}
