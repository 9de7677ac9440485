"""The clients of this process: one of each broker and log-in, for all threads."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tickwheel.django.options import BackendOptions
from tickwheel.sync import Client

_lock: Final = threading.Lock()
_clients: Final[dict[str, Client]] = {}
_process: int = 0
"""Whose clients these are: a fork makes its own."""
_instead: str = ""
"""The broker of a test, which stands for all."""
_FOR_TESTS: Final = ("timeout", "connect_timeout", "keepalive")
"""Of a client's options those that are no matter of who the broker is."""


def client_of(options: BackendOptions) -> Client:
    """A client that is open. Raises NotConnected and what else a first connection may raise; then the next call tries
    again. What is open finds back to its broker by itself."""
    global _process
    name = repr((options.url, sorted(options.client.items(), key=str)))
    with _lock:
        if _process != os.getpid():
            _clients.clear()
            _process = os.getpid()
        found = _clients.get(name)
        if found is None:
            found = new_client(options, "tasks").__enter__()
            _clients[name] = found
        return found


def new_client(options: BackendOptions, role: str) -> Client:
    """One of its own, not open yet. ``role`` stands in the broker's log."""
    more: dict[str, Any] = dict(options.client)
    if _instead:
        more = {key: value for key, value in more.items() if key in _FOR_TESTS}
    return Client(
        _instead or options.url or None, name=f"django-{role}/{socket.gethostname()}/{os.getpid()}", **more
    )


def close_clients() -> None:
    """Ends those of this process."""
    with _lock:
        found = list(_clients.values()) if _process == os.getpid() else []
        _clients.clear()
    for client in found:
        client.close()


@contextmanager
def redirected(url: str) -> Iterator[None]:
    """In the block all clients are of this broker, whatever the settings say: for tests."""
    global _instead
    close_clients()
    _instead = url
    try:
        yield
    finally:
        _instead = ""
        close_clients()
