"""Listening sockets of who started a command."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tickwheel_broker.config.settings import Settings
    from tickwheel_broker.net.listeners import OpenSocket


def inherited(number: int) -> socket.socket:
    """The one with a number. Raises click.UsageError."""
    try:
        found = socket.socket(fileno=number)
    except OSError as error:
        raise click.UsageError(f"--listen-fd {number} is no socket: {error.strerror}") from None
    found.setblocking(False)
    return found


@contextmanager
def listening(
    settings: Settings,
    descriptors: Sequence[int],
    open_listeners: Callable[[Settings], Awaitable[list[OpenSocket]]],
) -> Iterator[tuple[list[socket.socket], list[str]]]:
    """Inherited sockets, or else what `open_listeners` opens; and their addresses, as far as they are our own. Raises
    AddressInUse, CannotListen."""
    if descriptors:
        yield [inherited(number) for number in descriptors], []
        return
    import trio

    opened = trio.run(open_listeners, settings)
    try:
        yield [one.socket for one in opened], [one.url for one in opened]
    finally:
        for one in opened:
            one.close()
