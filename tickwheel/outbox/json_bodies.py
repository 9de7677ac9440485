"""Bodies of JSON: what ``json=`` of the outbox means, as ``send_json`` of a client has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from tickwheel.client.columns import JSON_HEADERS, json_bytes
from tickwheel.protocol.errors import BadArgument

BODY_COLUMNS: Final = ("message", "body")
"""The columns of a message table that may hold the body; the first of them does."""
CONTENT_TYPE: Final = "content-type"
"""The column that says of which type a body is, if there is one; a relay makes the header of it."""
NOTHING: Final = msgspec.UNSET
"""Where ``json`` was not given: None is the ``null`` of JSON."""


def body_or_json(body: Any, json: object, name: str = "body") -> Any:
    """The body, or the JSON that was given in its place. ``name``: what the caller calls the body. Raises
    BadArgument."""
    if json is NOTHING:
        if body is NOTHING:
            raise BadArgument("There is no body.", advice=f"Give {name}, or json=.")
        return body
    if body is not NOTHING:
        raise BadArgument(f"Both {name} and json were given.", advice="Give one of them.")
    return json_bytes(json)


def json_row(table: sa.Table, values: Mapping[str, Any], json: object) -> dict[str, Any]:
    """The columns of a message whose body is ``json``. Raises BadArgument."""
    if "json" in table.c:
        return {**values, "json": json}  # a column of the user's
    name = next((one for one in BODY_COLUMNS if one in table.c), None)
    if name is None:
        raise BadArgument(
            f"{table.name} has no column for json.",
            advice=f"The column is called {' or '.join(BODY_COLUMNS)}; other columns are filled by their names.",
        )
    if name in values:
        raise BadArgument(f"Both {name} and json were given.", advice="Give one of them.")
    row = {**values, name: _stored(table.c[name], json_bytes(json))}
    if CONTENT_TYPE in table.c:
        row.setdefault(CONTENT_TYPE, JSON_HEADERS[CONTENT_TYPE])
    return row


def _stored(column: sa.Column[Any], body: bytes) -> Any:
    if isinstance(column.type, sa.JSON):
        return msgspec.json.decode(body)
    return body if isinstance(column.type, sa.LargeBinary) else body.decode()
