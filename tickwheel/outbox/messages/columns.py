"""What the columns of a message table can hold. Pure: by their types.

A column that is too narrow for what delivery writes to it would stop the whole table at the first row that reaches its
end, so such a table is not adopted. One that was adopted before, or altered afterwards, goes on where that is possible:
``epoch`` counts up to its column's end and stays there.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from tickwheel.outbox.database import Kind
from tickwheel.outbox.errors import BadTable

REQUIRED: Final = ("id", "priority", "epoch", "time_next", "time_acked")
_TIMES: Final = ("time_next", "time_acked")
_WANTED_BITS: Final = {"id": 32, "priority": 8, "epoch": 32, "time_next": 64, "time_acked": 64}
"""Two thousand million ids or deliveries are enough for many tables; ns since 1970 need 64 bits."""
_LAST_OF_64_BITS: Final = (1 << 63) - 1


def bits_of(kind: Kind, column: sa.Column[Any]) -> int | None:
    """How many bits a column of whole numbers has; None if it is none of those that are told apart here."""
    declared = column.type
    if not isinstance(declared, sa.Integer):
        return None
    if kind == "sqlite" or isinstance(declared, sa.BigInteger):
        return 64  # SQLite keeps what it is given, whatever the type's name
    if isinstance(declared, mysql.TINYINT):
        return 8
    if isinstance(declared, sa.SmallInteger):
        return 16
    return 24 if isinstance(declared, mysql.MEDIUMINT) else 32


def range_of(kind: Kind, column: sa.Column[Any]) -> tuple[int, int]:
    """The first and the last number that a column can hold, as far as 64 bits with a sign hold them too."""
    bits = bits_of(kind, column) or 64
    if getattr(column.type, "unsigned", False):
        return 0, min((1 << bits) - 1, _LAST_OF_64_BITS)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def check_types(kind: Kind, table: sa.Table) -> None:
    """Raises BadTable for a table that no message could be delivered from."""
    for name in REQUIRED[1:]:
        column = table.c[name]
        if bits_of(kind, column) is None:
            raise BadTable(
                f"{table.name}.{name} is {_name_of(column)}, and must be whole numbers.",
                advice=f"Times are ns since 1970. Change it first: {_alter(kind, column)}",
            )
        if name in _TIMES:
            _check_width(kind, column)


def check_widths(kind: Kind, table: sa.Table) -> None:
    """Raises BadTable for a column whose end a table would reach."""
    for name in REQUIRED:
        if bits_of(kind, table.c[name]) is not None:  # an id may be of any type
            _check_width(kind, table.c[name])


def narrow_columns(kind: Kind, table: sa.Table) -> list[str]:
    """Those that ``check_widths`` would refuse, each with what widens it."""
    narrow = [table.c[name] for name in REQUIRED if _is_narrow(kind, table.c[name])]
    return [f"{one.name} is {_name_of(one)}; {_alter(kind, one)}" for one in narrow]


def _name_of(column: sa.Column[Any]) -> str:
    return str(column.type).lower()


def _is_narrow(kind: Kind, column: sa.Column[Any]) -> bool:
    bits = bits_of(kind, column)
    return bits is not None and bits < _WANTED_BITS[column.name]


def _check_width(kind: Kind, column: sa.Column[Any]) -> None:
    if not _is_narrow(kind, column):
        return
    last = range_of(kind, column)[1]
    raise BadTable(
        f"{column.table.name}.{column.name} is {_name_of(column)}, which ends at {last:,}.",
        advice=f"Make it wider first: {_alter(kind, column)}",
    )


def _alter(kind: Kind, column: sa.Column[Any]) -> str:
    """The statement that makes a column a bigint, with what else MariaDB would forget of it."""
    if kind == "sqlite":
        return "make the table again with this column as INTEGER, and copy the rows; SQLite alters no types."
    dialect: Any = mysql if kind == "mariadb" else postgresql
    quote = dialect.dialect().identifier_preparer.quote
    table, name = quote(column.table.name), quote(column.name)
    if kind == "postgresql":
        return f"alter table {table} alter column {name} type bigint"
    parts = [f"alter table {table} modify {name} bigint"]
    if not column.nullable:
        parts.append("not null")
    if column.autoincrement is True:
        parts.append("auto_increment")
    default = getattr(column.server_default, "arg", None)
    if default is not None:
        parts.append(f"default {default!s}")
    return " ".join(parts)
