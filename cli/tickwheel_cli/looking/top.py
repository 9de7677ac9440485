"""`tickwheel top`: how the broker goes, in a terminal, once a second."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from tickwheel.errors import TickwheelError
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.output import print_json, stdout_console
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from tickwheel_cli.looking.top_glance import Glance, Looks

EVERY_S: Final = 1.0
_NAMES: Final = (
    *("name", "scheduled", "backlog", "in-flight", "dead"),
    *("consumers", "sent", "delivered", "acked"),
)
_STOPS: Final = ("q", "Q", "\x03", "\x04", "")
"""Ctrl-C, Ctrl-D; empty: the terminal is gone."""


@click.command()
@click.option("--once", is_flag=True, help="Print it once, after a second of looking, and end.")
@click.option(
    "--sort",
    type=click.Choice(_NAMES),
    default="backlog",
    show_default=True,
    help="The column by which topics are sorted; its key changes it.",
)
@shared_options
def top(once: bool, sort: str) -> None:
    """Show once a second how the broker goes: what the dashboard's first page shows. With tokens it takes query:*.

    \b
    tickwheel top
    tickwheel top --sort dead
    tickwheel top --once
    tickwheel top --json | jq .per_second

    Keys sort the topics, `r` turns their order round, `q` ends it. Lateness is that of messages that reached their
    topics within the last minute, as far as it has been looking. --json prints one look, and needs no terminal.
    """
    from tickwheel_cli.looking.top_glance import Looks

    if not once and not current_session().json:
        _need_terminal()
    with current_session().client() as client:
        looks = Looks(client)
        if once or current_session().json:
            _print_once(looks, sort)
        else:
            with suppress(KeyboardInterrupt):  # an ordinary way to stop, and no error
                _watch(looks, sort)


def _need_terminal() -> None:
    """Raises CommandError."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
        return
    raise CommandError(
        "no_terminal",
        "top draws on a terminal, and there is none here",
        advice="Print it once with --once, or as JSON with --json. Over SSH, ssh -t gives a terminal.",
    )


def _print_once(looks: Looks, sort: str) -> None:
    looks.look()
    time.sleep(EVERY_S)  # rates are known by the second look
    glance = looks.look()
    if current_session().json:
        print_json(glance)
        return
    from tickwheel_cli.looking.top_picture import BY_NAME, picture

    console = stdout_console()
    console.print(picture(glance, BY_NAME[sort], console.width, None))


def _watch(looks: Looks, sort: str) -> None:
    """Until it is told to stop. A broker that goes meanwhile is waited for."""
    from rich.live import Live

    from tickwheel_cli.looking.top_picture import BY_KEY, BY_NAME, picture

    by, is_reversed, trouble = BY_NAME[sort], False, ""
    glance: Glance = looks.look()
    console = stdout_console()
    with _keys() as key_within, Live(console=console, auto_refresh=False, screen=True) as live:
        next_s = time.monotonic() + EVERY_S
        while True:
            width, height = console.size
            live.update(
                picture(glance, by, width, height, is_reversed=is_reversed, trouble=trouble), refresh=True
            )
            key = key_within(max(0.0, next_s - time.monotonic()))
            if key in _STOPS:
                return
            if key in BY_KEY:
                by, is_reversed = BY_KEY[key], False
            elif key == "r":
                is_reversed = not is_reversed
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + EVERY_S
                try:
                    glance, trouble = looks.look(), ""
                except TickwheelError as error:
                    trouble = error.message


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """A key that is pressed within so many seconds, without waiting for Enter; None: none was, or the window has
    another size."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    resized, resize = os.pipe()
    os.set_blocking(resize, False)

    def changed(number: int, frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(resize, b".")

    def key_within(seconds: float) -> str | None:
        ready, _, _ = select.select([terminal, resized], [], [], seconds)
        if resized in ready:
            os.read(resized, 64)
        return os.read(terminal, 1).decode("ascii", "replace") if terminal in ready else None

    handler = signal.signal(signal.SIGWINCH, changed)
    try:
        tty.setcbreak(terminal)
        yield key_within
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        os.close(resized)
        os.close(resize)
