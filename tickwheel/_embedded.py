"""The broker inside the user's own process: one directory, no daemon.

It runs in a thread with an event loop of its own; clients reach it over a Unix socket in a private directory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

import anyio.to_thread
import trio

from tickwheel import sync
from tickwheel.client.checks import known, shown
from tickwheel.client.client import Client
from tickwheel.client.forks import keep, tell
from tickwheel.client.options import BrokerSettings, ClientOptions
from tickwheel.protocol.errors import BadArgument, ClientForked, NotConnected
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.load import MAX_UNIX_PATH_BYTES, from_arguments
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.daemon import Running, serve

_DEFAULTS: dict[str, Any] = {"listen_tcp": False, "drain_timeout": "500ms"}
_NO_TOKEN: Final = ""
"""A token of the environment is for another broker."""

_SOCKET_NAME = "broker.sock"

Self = TypeVar("Self", bound="EmbeddedBroker")


class EmbeddedBroker:
    """A broker in a thread of this process. Use it in `with` or `async with`, or call `start` and `close`.

    The directory has one owner at a time; after `close` another process, or the daemon, may serve it. What was
    confirmed is safe even if the process is killed.
    """

    def __init__(
        self, directory: str | os.PathLike[str], clock: Clock | None, settings: BrokerSettings
    ) -> None:
        self._directory = _path(directory)
        self._clock = clock
        self._arguments = settings
        self._forked: ClientForked | None = None
        self._turn = threading.Lock()
        """Who closes waits for who starts."""
        self._thread: threading.Thread | None = None
        self._socket_directory = ""
        self._running: Running | None = None
        self._failure: BaseException | None = None
        tell(self)

    @property
    def directory(self) -> str:
        """The data directory."""
        return self._directory

    @property
    def url(self) -> str:
        """Where clients connect. Raises NotConnected while the broker does not run."""
        return self._runs().urls[0]

    @property
    def web_urls(self) -> list[str]:
        """Where HTTP API and dashboard are, if the setting `web` is on. Raises NotConnected as `url` does."""
        children = self._runs().children
        return [] if children is None else children.web.urls

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """A `tickwheel.Client` for this broker, not yet connected; `options` are those of the client."""
        known(options, ClientOptions.__annotations__, "client")
        options.setdefault("token", _NO_TOKEN)
        return Client(self.url, **options)

    def sync_client(self, **options: Unpack[ClientOptions]) -> sync.Client:
        """A `tickwheel.sync.Client` for this broker, not yet connected."""
        known(options, ClientOptions.__annotations__, "sync_client")
        options.setdefault("token", _NO_TOKEN)
        return sync.Client(self.url, **options)

    def start(self) -> None:
        """Open the directory and serve it. Raises DirectoryLocked, DirectoryReadOnly, DamagedLog, ConfigError, …"""
        self._check_forked()
        with self._turn:
            self._start()

    def _start(self) -> None:
        if self._thread is not None:
            raise BadArgument("The embedded broker was started already.")
        started: Future[Running] = Future()
        settings = self._settings()
        thread = threading.Thread(
            target=self._run, args=(settings, started), name="tickwheel-broker", daemon=True
        )
        thread.start()
        try:
            self._running = started.result()
        except BaseException:
            thread.join()
            self._remove_socket()
            raise
        self._thread = thread
        atexit.register(self.close)

    def close(self) -> None:
        """Stop in good order; may be called twice. Raises what ended the broker early, if anything did."""
        if self._forked is not None:
            return
        with self._turn:
            self._close()

    def _close(self) -> None:
        thread, running = self._thread, self._running
        if thread is None or running is None:
            return
        self._thread = self._running = None
        atexit.unregister(self.close)
        running.stop()
        thread.join()
        self._remove_socket()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _runs(self) -> Running:
        self._check_forked()
        if self._running is None:
            raise NotConnected("The embedded broker does not run.", advice="Use it inside its `with` block.")
        return self._running

    def _check_forked(self) -> None:
        if self._forked is not None:
            raise ClientForked(
                "The embedded broker runs in the process that this one was forked from.",
                advice="Start it after the fork, or let the child be a client: pass it the broker's url.",
            )

    def forked(self, error: ClientForked) -> None:
        """See ``_forks``: the thread and the directory are the parent's."""
        self._forked = error
        atexit.unregister(self.close)
        keep(self._thread, self._running)
        if self._thread is not None and self._running is not None and self._running.broker is not None:
            self._running.broker.store.forked()
        self._thread = self._running = None

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self: Self) -> Self:
        try:
            await anyio.to_thread.run_sync(self.start)
        except Exception:
            raise
        except BaseException:  # it may start nevertheless: asyncio's Task.cancel does not wait for threads
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def _settings(self) -> Settings:
        arguments: dict[str, Any] = {**_DEFAULTS, **self._arguments} | {"data_dir": self._directory}
        if "unix_socket" not in arguments:
            self._socket_directory = _private_directory()
            arguments["unix_socket"] = os.path.join(self._socket_directory, _SOCKET_NAME)
        try:
            return from_arguments(**arguments)
        except BaseException:
            self._remove_socket()
            raise

    def _run(self, settings: Settings, started: Future[Running]) -> None:
        async def main() -> None:
            await serve(settings, clock=self._clock, ready=started.set_result)

        try:
            trio.run(main)
        except BaseException as error:
            if started.done():
                self._failure = error
            else:
                started.set_exception(error)

    def _remove_socket(self) -> None:
        if self._socket_directory:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
            self._socket_directory = ""


def _path(directory: str | os.PathLike[str]) -> str:
    try:
        path = os.fspath(directory)
    except TypeError:
        path = ""
    if isinstance(path, str) and path and "\0" not in path:
        return path
    raise BadArgument(f"{shown(directory)} is no directory.", advice="Give its path as a text or a Path.")


def embedded(directory: str | os.PathLike[str], **settings: Unpack[BrokerSettings]) -> EmbeddedBroker:
    """The broker in this process, on `directory` (created if it is missing)::

        with tickwheel.embedded("reminders") as broker, broker.sync_client() as client:
            client.send("tea", b"ready", delay=timedelta(minutes=4))

    It is a context manager for `with` and for `async with`. `settings` are those of the configuration file, for
    example `ack_wait="10s"`; unknown ones raise ConfigError.
    """
    return EmbeddedBroker(directory, None, settings)


def _private_directory() -> str:
    """A directory of mode 0700 whose path leaves room for a socket's name: the system allows about 100 bytes."""
    directory = tempfile.mkdtemp(prefix="tickwheel-")
    if len(os.fsencode(os.path.join(directory, _SOCKET_NAME))) <= MAX_UNIX_PATH_BYTES:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="tickwheel-", dir="/tmp")
