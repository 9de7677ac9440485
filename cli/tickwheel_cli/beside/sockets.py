"""Listening sockets of who started a command."""

from __future__ import annotations

import socket

import click


def inherited(number: int) -> socket.socket:
    """The one with a number. Raises click.UsageError."""
    try:
        found = socket.socket(fileno=number)
    except OSError as error:
        raise click.UsageError(f"--listen-fd {number} is no socket: {error.strerror}") from None
    found.setblocking(False)
    return found
