"""The option that all commands of `tickwheel outbox` share: which database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError

    from tickwheel.outbox import Database
    from tickwheel_cli.shared.failures import CommandError

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT_DATABASE = "sqlite:///app.db"


def database_option(command: _Command) -> _Command:
    """`--database URL`, also TICKWHEEL_DATABASE: the argument `database_url`."""
    return click.option(
        "--database",
        "database_url",  # --url is the broker's
        metavar="URL",
        envvar="TICKWHEEL_DATABASE",
        default=DEFAULT_DATABASE,
        show_default=True,
        help="The SQLAlchemy URL of the database, also TICKWHEEL_DATABASE: there a password is not seen by others.",
    )(command)


@contextmanager
def open_database(url: str, *, may_create: bool = False) -> Iterator[Database]:
    """The database, closed afterwards. A command that only looks makes no SQLite file that is not there."""
    from tickwheel import outbox

    if not may_create:
        _check_file(url)
    opening = outbox.open_database  # says so if SQLAlchemy is not installed
    from sqlalchemy.exc import DBAPIError

    try:
        with opening(url) as database:
            yield database
    except DBAPIError as error:
        raise _refused(error) from error


def _refused(error: DBAPIError) -> CommandError:
    """What a database says to what is no fault of its being away or busy: a wrong password, a duplicate, no right."""
    from tickwheel_cli.shared.failures import CommandError

    said = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    advice = "Nothing was changed. Mend what it names: the account, its rights, or the values."
    return CommandError("database_refused", f"The database refused: {said[0]}", advice=advice)


def _check_file(url: str) -> None:
    from pathlib import Path

    prefix, _, path = url.partition(":///")
    path = path.partition("?")[0]
    if not prefix.startswith("sqlite") or path in ("", ":memory:") or Path(path).exists():
        return
    from tickwheel_cli.shared.failures import CommandError

    raise CommandError(
        "no_database",
        f"There is no SQLite database {path}.",
        advice="Name it with --database sqlite:///FILE; the `init` commands make one.",
    )
