"""The option that all commands of `tickwheel outbox` share: which database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tickwheel.outbox import Database

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT_DATABASE = "sqlite:///app.db"


def database_option(command: _Command) -> _Command:
    """`--database URL`, also TICKWHEEL_DATABASE: the argument `url`."""
    return click.option(
        "--database",
        "url",
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
    with outbox.open_database(url) as database:
        yield database


def _check_file(url: str) -> None:
    from pathlib import Path

    prefix, _, path = url.partition(":///")
    path = path.partition("?")[0]
    if not prefix.startswith("sqlite") or path in ("", ":memory:") or Path(path).exists():
        return
    from cli.failures import CommandError

    raise CommandError(
        "no_database",
        f"There is no SQLite database {path}.",
        "Name it with --database sqlite:///FILE; `tickwheel outbox init` makes one.",
    )
