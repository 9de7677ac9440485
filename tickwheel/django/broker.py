"""The clients of this process: one of each broker and log-in, for all threads."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Final

from tickwheel.django.options import BackendOptions
from tickwheel.sync import Client

_lock: Final = threading.Lock()
_clients: Final[dict[str, Client]] = {}
_process: int = 0
"""Whose clients these are: a fork makes its own."""


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
    return Client(options.url or None, name=f"django-{role}/{socket.gethostname()}/{os.getpid()}", **more)


def close_clients() -> None:
    """Ends those of this process."""
    with _lock:
        found = list(_clients.values()) if _process == os.getpid() else []
        _clients.clear()
    for client in found:
        client.close()
