"""Where a command talks to: a daemon (`--url`) or a directory (`--data`), and how it prints (`--json`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tickwheel import sync

CONNECT_TIMEOUT_S = 2.0
"""A person waits for the answer, and the broker was probably just not started."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass
class Session:
    """The options that may stand before or after the name of the command."""

    url: str | None = None
    data: Path | None = None
    json: bool = False

    @property
    def client_options(self) -> dict[str, Any]:
        """For `tickwheel.Client`. With `--data` there is no login: a token is for another broker."""
        return {} if self.data is None else {"token": ""}

    @contextmanager
    def address(self, *, may_create: bool = False) -> Iterator[str | None]:
        """The broker's URL (None: the client's default); with `--data`, that of one in this process.

        Only a command that puts something in makes a data directory that is not there.
        """
        if self.data is None:
            yield self.url
            return
        if self.url is not None:
            raise click.UsageError("--data runs a broker of its own; it cannot be used together with --url")
        if not may_create:
            check_directory(self.data)
        import tickwheel

        with tickwheel.embedded(self.data) as broker:
            yield broker.url

    @contextmanager
    def client(self, *, may_create: bool = False) -> Iterator[sync.Client]:
        """A connected client that blocks; errors are those of `tickwheel.errors`."""
        from tickwheel import sync

        with (
            self.address(may_create=may_create) as url,
            sync.Client(url, connect_timeout=CONNECT_TIMEOUT_S, **self.client_options) as client,
        ):
            yield client


def check_directory(directory: Path) -> None:
    """Raises CommandError unless it is a data directory."""
    if (directory / "commitlog").is_dir():
        return
    from tickwheel_cli.shared.failures import CommandError

    what = "has no commitlog/ in it" if directory.is_dir() else "does not exist"
    raise CommandError(
        "no_data_directory",
        f"{directory} is not a data directory: it {what}",
        advice="Name the directory that a broker was given with --data; the first send, or `serve`, makes one.",
    )


def current_session() -> Session:
    """The session of the command that runs now."""
    return click.get_current_context().ensure_object(Session)


def _remember(field: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None and value is not False:
            setattr(ctx.ensure_object(Session), field, value)
        return value

    return callback


def json_option(command: _Command) -> _Command:
    """`--json`, before or after the name of the command."""
    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_remember("json"),
        help="Print JSON, for scripts.",
    )(command)


def url_option(command: _Command) -> _Command:
    """`--url`, before or after the name of the command."""
    return click.option(
        "--url",
        expose_value=False,
        callback=_remember("url"),
        help="The broker, also TICKWHEEL_URL; of a cluster, tickwheel://A:7411,B:7411.  "
        "[default: tickwheel://127.0.0.1:7411]",
    )(command)


def _export(variable: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """What is given counts for every client of this process, and for processes that it starts."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value:
            os.environ[variable] = "1" if value is True else value
            if parameter.name == "token_file":
                os.environ.pop("TICKWHEEL_TOKEN", None)
        return value

    return callback


def security_options(command: _Command, *, hidden: bool = False) -> _Command:
    """How to be sure of the broker, and to log in. A token itself is no argument: the list of processes shows those."""
    for name, (variable, text) in reversed(_SECURITY.items()):
        command = click.option(
            name,
            metavar="FILE" if variable != "TICKWHEEL_PLAIN_TOKEN" else None,
            is_flag=variable == "TICKWHEEL_PLAIN_TOKEN",
            hidden=hidden,
            expose_value=False,
            callback=_export(variable),
            help=f"{text}, also {variable}.",
        )(command)
    return command


_SECURITY = {
    "--ca": ("TICKWHEEL_CA", "CA of the broker's certificate, unless the system knows it"),
    "--client-certificate": ("TICKWHEEL_CERTIFICATE", "For brokers that want one"),
    "--client-key": ("TICKWHEEL_KEY", "Its key"),
    "--token-file": (
        "TICKWHEEL_TOKEN_FILE",
        "A file with the token to log in with (the token itself: TICKWHEEL_TOKEN)",
    ),
    "--plain-token": ("TICKWHEEL_PLAIN_TOKEN", "Send the token to another machine even without TLS"),
}


def security_variables() -> tuple[str, ...]:
    """The variables that say the same, and the token itself."""
    return (*(variable for variable, _ in _SECURITY.values()), "TICKWHEEL_TOKEN")


class _Directory(click.Path):
    """A directory, and no empty name: that would be the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("it is empty: name a directory", param, ctx)
        return super().convert(value, param, ctx)


def place_options(command: _Command) -> _Command:
    """`--url` and `--data`, before or after the name of the command."""
    return url_option(
        click.option(
            "--data",
            type=_Directory(file_okay=False, path_type=Path),
            expose_value=False,
            callback=_remember("data"),
            help="Work on this directory without a daemon.",
        )(command)
    )


def connection_options(command: _Command) -> _Command:
    """`place_options`, and what logging in needs, which the help of `tickwheel` itself has."""
    return place_options(security_options(command, hidden=True))


def shared_options(command: _Command) -> _Command:
    """All options that may stand before or after the name of a command that talks to a broker."""
    return connection_options(json_option(command))
