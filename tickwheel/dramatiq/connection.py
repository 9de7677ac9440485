"""The client of a Dramatiq process: opened when it is first needed, and another one in each child after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dramatiq.errors import ConnectionClosed, ConnectionFailed

from tickwheel.client.options import ClientOptions
from tickwheel.client.url import Urls
from tickwheel.errors import (
    ConnectionDenied,
    NotConnected,
    RequestTimeout,
    RequestUncertain,
    SendUncertain,
    TickwheelError,
)
from tickwheel.sync import Client

_BROKEN = (NotConnected, RequestTimeout, RequestUncertain, SendUncertain)
"""What Dramatiq calls a broken connection: it tries again then."""


class Connection:
    """See the module. Any number of threads may use it."""

    def __init__(self, url: Urls | None, options: ClientOptions) -> None:
        """Raises BadArgument, BadUrl, ConfigError."""
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._open: Client | None = None
        Client(url, **options)  # what is wrong with them is told now, not when the first message is sent

    def client(self) -> Client:
        """The open client of this process. Raises ConnectionFailed, and what opening a client raises."""
        if self._pid != os.getpid():  # the lock may be held by a thread that this process does not have
            self._lock, self._open, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._open is None:
                client = Client(self._url, **self._options)
                try:
                    self._open = client.__enter__()
                except NotConnected as error:
                    raise ConnectionFailed(error) from error
            return self._open

    @contextmanager
    def used(self) -> Iterator[Client]:
        """The client, for one call. One that the broker lets in no more is replaced at the next: by then its token file
        may have another token. Raises ConnectionFailed, ConnectionClosed, and what the call raises."""
        client = self.client()
        try:
            with told_to_dramatiq():
                yield client
        except ConnectionDenied:
            self.close()
            raise

    def close(self) -> None:
        """Writes what is on its way and ends it; the next use opens another one."""
        if self._pid != os.getpid():
            return
        with self._lock:
            client, self._open = self._open, None
        if client is not None:
            client.close()


@contextmanager
def told_to_dramatiq() -> Iterator[None]:
    """A connection that broke is an error of Dramatiq's; others are not changed. Raises ConnectionClosed."""
    try:
        yield
    except TickwheelError as error:
        if isinstance(error, _BROKEN):
            raise ConnectionClosed(error) from error
        raise
