"""The daemon: opens the store, listens, serves until told to stop, and leaves everything in order.

`run` is for a process of its own (`tickwheel serve`): logs, signals, exit codes. `serve` is the broker
alone, as `tickwheel.embedded` and `tickwheel.testing` run it in a thread of the user's process.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy.ma  # noqa: F401 - np.unique loads it where it is called first, and that holds the event loop for 30 ms
import trio

from tickwheel.protocol.errors import ConfigError, TickwheelError
from tickwheel_broker import logs
from tickwheel_broker.background.collector import spare_collector
from tickwheel_broker.bell import Bell
from tickwheel_broker.broker import Broker
from tickwheel_broker.children.all import Children, open_children
from tickwheel_broker.clock.clock import Clock, SystemClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.connections.server import Server
from tickwheel_broker.errors import LogNotWritten, first_error, from_store
from tickwheel_broker.exit_codes import ExitCode, exit_code_for
from tickwheel_broker.group_commit import SyncFailed, SyncThread
from tickwheel_broker.monitoring.http_listener import Watching, open_watching
from tickwheel_broker.monitoring.systemd import ServiceManager
from tickwheel_broker.monitoring.watched import Sight, Watched
from tickwheel_broker.net.listeners import Listener, open_listeners
from tickwheel_broker.net.open_files import allow_many
from tickwheel_broker.net.tls import Certificates, certificates_of
from tickwheel_broker.security.access import Access, open_access
from tickwheel_broker.wiring import connection_parts, watched_parts
from tickwheel_native import memory
from timerlog.errors import DirectoryGone, LogFull, StoreError, TooManyOpenFiles
from timerlog.files.disk import has_no_room
from timerlog.files.window import PAGE_BYTES
from timerlog.settings import StoreSettings
from timerlog.store import Store

T = TypeVar("T")

_log = logs.get_logger("daemon")


class Running:
    """A broker that has started: where it listens, and how to stop it from any thread."""

    def __init__(
        self,
        *,
        urls: list[str],
        settings: Settings,
        certificates: Certificates | None = None,
        access: Access | None = None,
        watching: Watching | None = None,
        children: Children | None = None,
    ) -> None:
        self.urls = urls
        self.settings = settings
        self.certificates = certificates
        self.access = access
        self.tokens_changed = Bell()
        self.watching = watching
        self.children = children
        self.broker: Broker | None = None
        """Once it serves."""
        self.sight = Sight(settings)
        self._stop = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def stop(self) -> None:
        """Begin an orderly shutdown; safe in any thread, and more than once."""
        try:
            self._token.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            return

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the broker's loop, and return its result; in any thread but the broker's. Raises
        trio.RunFinishedError."""
        return trio.from_thread.run(work, *arguments, trio_token=self._token)

    def reload(self) -> None:
        """Load certificates and tokens anew, as SIGHUP does; what is bad is logged, and the old ones stay."""
        if self.certificates is not None:
            self.certificates.reload()
        if self.children is not None:
            self.children.reload()
        if self.access is not None:
            self.access.audit.reopen()
            if self.access.reload():
                self.tokens_changed.ring()

    async def wait_stopped(self) -> None:
        """Return once `stop` was called."""
        await self._stop.wait()


Ready = Callable[[Running], None]


class Serving(Protocol):
    """How to serve: as a broker of its own, or as a node of a cluster."""

    async def __call__(
        self, settings: Settings, *, clock: Clock | None = None, ready: Ready | None = None
    ) -> None:
        """See `serve`."""


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def run(
    settings: Settings,
    *,
    clock: Clock | None = None,
    ready: Ready | None = None,
    serving: Serving | None = None,
) -> ExitCode:
    """Serve in the main thread until SIGTERM or SIGINT. Errors are logged in one line, with advice; no
    traceback. `serving`: else it is `serve`.
    """
    _fill_standard_streams()
    logs.configure(settings)
    if not allow_many():
        _log.warning("the number of open files stays limited")
    _tell_of_bus_errors(settings)
    stopped_early = _note_signals()
    try:
        trio.run(_serve_with_signals, settings, clock, ready, stopped_early, serving or serve)
    except TickwheelError as error:
        _log.error("stopped", code=error.code, reason=error.message, advice=error.advice)
        return exit_code_for(error.code)
    except Exception:
        _log.exception("stopped by a defect")
        return ExitCode.DEFECT
    finally:
        # How it ended is decided: another signal would only hide it.
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
    return ExitCode.OK


async def serve(settings: Settings, *, clock: Clock | None = None, ready: Ready | None = None) -> None:
    """Serve until `Running.stop`; `ready` is called when clients can connect.

    Raises TickwheelError: what cannot be started (locked, read_only, damaged, address_in_use, …) or
    `log_failed`.
    """
    if settings.cluster:
        raise ConfigError(
            "cluster is set: a broker inside a program is no node of a cluster. Start its nodes with "
            "`tickwheel serve --cluster URL --node N`, and give clients their addresses"
        )
    clock = clock or SystemClock()
    certificates = certificates_of(settings)
    access = open_access(
        settings, clock, verifies_clients=certificates is not None and certificates.verifies_clients
    )
    with (
        closing(access.audit),
        closing(await open_watching(settings, certificates)) as watching,
        closing(await open_children(settings)) as children,
    ):
        await _serve_watched(
            settings=children.settings,
            clock=clock,
            ready=ready,
            certificates=certificates,
            access=access,
            watching=watching,
            children=children,
        )
    _log.info("stopped")


async def _serve_watched(
    settings: Settings,
    clock: Clock,
    ready: Ready | None,
    certificates: Certificates | None,
    access: Access,
    watching: Watching,
    children: Children,
) -> None:
    # A new directory is made only when the addresses are free. An old one is opened first: clients do not wait for it.
    listeners = await open_listeners(settings, certificates) if _listens_first(settings) else None
    try:
        store = _open_store(settings, clock)
    except TickwheelError:
        for listener in listeners or ():
            listener.close()
        raise
    is_clean = False
    try:
        try:
            if listeners is None:
                listeners = await open_listeners(settings, certificates)
            urls = [one.url for one in listeners]
            running = Running(
                urls=urls,
                settings=settings,
                certificates=certificates,
                access=access,
                watching=watching,
                children=children,
            )
            await _serve_store(store, clock, listeners, ready, running)
        except* (SyncFailed, StoreError, OSError) as group:
            raise explain(first_error(group), store.check_directory) from group
        is_clean = True
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    finally:
        store.close(clean=is_clean)


async def _serve_with_signals(
    settings: Settings,
    clock: Clock | None,
    ready: Ready | None,
    stopped_early: list[int],
    serving: Serving,
) -> None:
    """Signals are caught from the very start: one that comes before the broker is up stops it once it is."""
    manager = ServiceManager()
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:

                def on_ready(running: Running) -> None:
                    if stopped_early:
                        running.stop()
                    nursery.start_soon(_obey_signals, signals, running, manager)
                    spare_collector()
                    if ready is not None:
                        ready(running)
                    manager.tell(READY=1)
                    nursery.start_soon(manager.attend, running.sight)

                await serving(settings, clock=clock, ready=on_ready)
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def _fill_standard_streams() -> None:
    """One that is closed must not be given to a file of the store: words would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _tell_of_bus_errors(settings: Settings) -> None:
    """Files are mapped into memory: that a page of one cannot be read or written is no error of a call, but SIGBUS."""
    event = {
        "event": "stopped",
        "code": "page_failed",
        "reason": f"A page of a file in {settings.data_dir} could not be read or written (SIGBUS): the disk is full, "
        "it failed, or somebody cut a file.",
        "advice": "Everything acknowledged is in the log. Make room, look for errors of the disk (dmesg), start again.",
        "level": "error",
    }
    words = logs.line(settings, event)
    memory.words_for_bus_error(words, ExitCode.DISK_FULL)


def _open_to(broker: Broker, running: Running) -> dict[str, str]:
    """Who may do everything, where that is whoever can connect. Tokens are in no backup, so that a log that was
    restored is open although its broker was not."""
    certificates = running.certificates
    if not broker.access.is_open or (certificates is not None and certificates.verifies_clients):
        return {}
    if broker.store.tables.timeline:
        _log.warning(
            "whoever can connect may do everything: there are no tokens",
            reason="the log was restored or repaired, and tokens are in no backup",
            advice="Put tokens.json back into the data directory, or make a token: `tickwheel tokens create`.",
        )
    return {"access": "without tokens"}


def _note_signals() -> list[int]:
    """What came before there is a loop that obeys, and so does not end the process half-way through a start."""
    came: list[int] = []
    for number in _STOPPING:
        signal.signal(number, lambda received, _frame: came.append(received))
    return came


async def _obey_signals(signals: AsyncIterator[int], running: Running, manager: ServiceManager) -> None:
    is_stopping = False
    async for number in signals:
        if number == signal.SIGHUP:
            manager.reloading()
            running.reload()
            manager.tell(READY=1)
        elif is_stopping:
            _log.warning(
                "stopping already",
                signal=signal.Signals(number).name,
                advice="It ends when its clients have left, after drain_timeout at the latest.",
            )
        else:
            is_stopping = True
            _log.info("stopping", signal=signal.Signals(number).name)
            manager.tell(STOPPING=1)
            running.stop()


def _open_store(settings: Settings, clock: Clock) -> Store:
    try:
        store = Store.open(Path(settings.data_dir), store_settings(settings), clock.now_ms())
    except StoreError as error:
        raise from_store(error) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise from_store(
                TooManyOpenFiles(f"cannot open {settings.data_dir}: {error.strerror}")
            ) from error
        raise _disk_error(error, f"cannot open {settings.data_dir}: {error.strerror or error}") from error
    return store


def store_settings(settings: Settings) -> StoreSettings:
    return StoreSettings(
        segment_bytes=-(-settings.segment_bytes // PAGE_BYTES) * PAGE_BYTES,
        disk_reserve_bytes=settings.disk_reserve_bytes,
        max_body_bytes=settings.max_body_bytes,
        max_frame_bytes=settings.max_frame_bytes,
        max_topics=settings.max_topics,
        max_groups=settings.max_groups,
        ack_wait_ms=settings.ack_wait_ms,
        min_backoff_ms=settings.min_backoff_ms or settings.ack_wait_ms,
        max_backoff_ms=settings.max_backoff_ms,
        purge_after_ms=settings.purge_after_ms,
    )


def _listens_first(settings: Settings) -> bool:
    directory = Path(settings.data_dir).absolute()
    is_socket_inside = directory in Path(settings.unix_socket).absolute().parents
    try:
        os.stat(directory)
    except FileNotFoundError:
        return not is_socket_inside
    except OSError:
        pass  # opening it says what is wrong
    return False


async def _serve_store(
    store: Store, clock: Clock, listeners: list[Listener], ready: Ready | None, running: Running
) -> None:
    with SyncThread() as sync_thread:
        async with trio.open_nursery() as nursery:
            broker = Broker(
                settings=running.settings,
                store=store,
                clock=clock,
                runner=sync_thread,
                nursery=nursery,
                access=running.access,
            )
            if running.children is not None:
                nursery.start_soon(running.children.run, running.urls, running.wait_stopped)
            await serve_broker(broker, listeners, ready, running, nursery)
            nursery.cancel_scope.cancel()


async def serve_broker(
    broker: Broker,
    listeners: list[Listener],
    ready: Ready | None,
    running: Running,
    nursery: trio.Nursery,
    guard: Callable[[Server], Awaitable[None]] | None = None,
) -> None:
    """Serve on these listeners until `running.stop`, then stop in order. `nursery` takes the tasks. `guard` runs
    beside it."""
    watched = watched_parts(broker)
    running.broker, running.sight.watched = broker, watched
    server = Server(connection_parts(broker), nursery)
    if guard is not None:
        nursery.start_soon(guard, server)
    engine, accepting, engine_ended = trio.CancelScope(), trio.CancelScope(), trio.Event()
    nursery.start_soon(_run_engine, broker, watched, engine, engine_ended)
    nursery.start_soon(_accept_all, server, listeners, accepting)
    nursery.start_soon(server.watch)
    nursery.start_soon(broker.access.watch, running.tokens_changed.ring)
    nursery.start_soon(_check_logins, server, running)
    nursery.start_soon(watched.vitals.run)
    if running.watching is not None:
        nursery.start_soon(running.watching.run, running.sight, broker.access)
    if broker.settings.durability != "always":
        _log.warning("sends are confirmed before they are on the disk", durability=broker.settings.durability)
    access = _open_to(broker, running)
    _log.info("started", urls=" ".join(running.urls), **http_urls(running), **access, **_recovered(broker))
    if ready is not None:
        ready(running)
    await running.wait_stopped()
    accepting.cancel()
    await _drain(broker, server)
    engine.cancel()
    await engine_ended.wait()
    await broker.commit.sync_once()
    await server.flush()


def http_urls(running: Running) -> dict[str, object]:
    """Where it is watched, and what is beside it, for the log; nothing of what there is not."""
    found = {"http": running.watching.urls} if running.watching is not None else {}
    found |= running.children.urls if running.children is not None else {}
    return {name: " ".join(urls) for name, urls in found.items() if urls}


def _recovered(broker: Broker) -> dict[str, object]:
    """What was found in the data directory, for the log."""
    report = broker.store.recovery
    return {
        "data_dir": broker.settings.data_dir,
        "is_new": report.is_new,
        "was_clean": report.was_clean,
        "replayed_bytes": report.replayed_bytes,
        "torn_tail_bytes": report.torn_tail_bytes,
    }


async def _run_engine(broker: Broker, watched: Watched, scope: trio.CancelScope, ended: trio.Event) -> None:
    with scope:
        await broker.run()
    watched.vitals.has_ended = True
    ended.set()


async def _check_logins(server: Server, running: Running) -> None:
    while True:
        await running.tokens_changed.wait()
        server.check_logins()


async def _accept_all(server: Server, listeners: list[Listener], scope: trio.CancelScope) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(server.accept, listener)


async def _drain(broker: Broker, server: Server) -> None:
    """Take no more sends, deliver nothing more, let clients finish. What they still hold stays leased, as when a
    connection is lost: they may be at work, and go on with it after the restart."""
    broker.drain()
    server.go_away("the broker is stopping")
    with trio.move_on_after(broker.settings.drain_timeout_ms / 1_000):
        await server.wait_empty()
    _log.info("drained", connections_left=broker.counters.connections)


def explain(error: BaseException, check_directory: Callable[[], None]) -> TickwheelError:
    """The typed error of what has ended a broker."""
    with suppress(OSError):
        try:
            check_directory()
        except DirectoryGone as gone:
            error = gone  # whatever failed because of it
    if isinstance(error, StoreError):
        return from_store(error)
    return _disk_error(error, str(error))


def _disk_error(error: BaseException, reason: str) -> TickwheelError:
    """What a disk that was written to has said."""
    if isinstance(error, OSError) and has_no_room(error):
        return from_store(LogFull(reason))
    return LogNotWritten(reason)
