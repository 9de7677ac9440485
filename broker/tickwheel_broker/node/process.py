"""A node of a cluster as a process: it follows the cluster's log, and serves clients while it owns it.

`serve_node` is to `daemon.run` what `daemon.serve` is for a broker of its own. What becomes of the log is decided by
`Node`; here is what is around it: the directory, the listeners, the broker of each ownership, and a stop in order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from tickwheel.protocol.errors import NotOwner
from tickwheel_broker import logs
from tickwheel_broker.background.disk_room import Room, room_of
from tickwheel_broker.broker import Broker
from tickwheel_broker.children.all import Children, open_children
from tickwheel_broker.clock.clock import Clock, SystemClock
from tickwheel_broker.config.cluster_url import kafka_options, parse_cluster_url
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.connections.server import Server
from tickwheel_broker.counters import Counters
from tickwheel_broker.daemon import (
    Ready,
    Running,
    explain,
    http_urls,
    serve_broker,
    store_settings,
)
from tickwheel_broker.documents.schedule_slots import zone_rules
from tickwheel_broker.errors import first_error, from_store
from tickwheel_broker.group_commit import SyncFailed, SyncThread
from tickwheel_broker.monitoring.http_listener import Watching, open_watching
from tickwheel_broker.monitoring.watched import Sight
from tickwheel_broker.net.listeners import Listener, open_listeners
from tickwheel_broker.net.tls import Certificates, certificates_of
from tickwheel_broker.net.transport import Transport
from tickwheel_broker.node.candidacy import Candidacy, Reason
from tickwheel_broker.node.disk_watch import DiskWatch
from tickwheel_broker.node.hold_off import HoldOff
from tickwheel_broker.node.referral import Referral
from tickwheel_broker.security.access import Access, open_access
from tickwheel_broker.sharedlog.beginning import kafka_errors, wait_for_origin
from tickwheel_broker.sharedlog.known_owner import OwnWords, Silence
from tickwheel_broker.sharedlog.log_loss import LastingLog
from tickwheel_broker.sharedlog.node import Membership, Node
from tickwheel_broker.sharedlog.replicator import Replicator, beat_s
from tickwheel_broker.sharedlog.shared_log import APPEND_TIMEOUT_S, SharedLog, SharedLogUnavailable
from tickwheel_broker.sharedlog.standing import CountedLog, Standing
from timerlog.errors import DiskFull, StoreError
from timerlog.files.disk import FileDisk
from timerlog.files.lock import DirectoryLock
from timerlog.files.replica_mark import ReplicaMark, mark_replica, read_mark
from timerlog.replication.follower import Follower, open_follower
from timerlog.replication.genesis import Genesis, pack_genesis, unpack_genesis
from timerlog.replication.origin import Origin
from timerlog.store import Store, too_full

_MS_PER_S: Final = 1_000
_WATCHES_A_TIMEOUT: Final = 8
_CLOCK_S: Final = 0.5
SETTINGS_S = 60.0

_log = logs.get_logger("cluster")


class Connected(NamedTuple):
    """A node's way to its cluster."""

    shared: SharedLog
    membership: Membership
    find_dangers: Callable[[], Awaitable[list[str]]]
    """What of the shared log's settings endangers it, in words. It may raise SharedLogUnavailable."""
    count_twins: Callable[[], Awaitable[int]]
    """How many other processes follow with this node's number. It may raise SharedLogUnavailable."""


Connect = Callable[[Settings, Callable[[], bool]], AbstractAsyncContextManager[Connected]]
"""The second one says, in any thread, whether the node is healthy: otherwise it is not to be chosen."""


@asynccontextmanager
async def connect_kafka(settings: Settings, is_healthy: Callable[[], bool]) -> AsyncIterator[Connected]:
    """By a topic of Kafka, and a consumer group of the same name. Raises ExtraMissing, ConfigError."""
    url, options = parse_cluster_url(settings.cluster), kafka_options(settings.kafka_config)
    timeout_s = settings.cluster_timeout_ms / _MS_PER_S
    with kafka_errors():
        from tickwheel_broker.sharedlog.kafka.group import KafkaGroup
        from tickwheel_broker.sharedlog.kafka.log import KafkaLog
        from tickwheel_broker.sharedlog.kafka.topic import find_dangers

        async with (
            KafkaLog(
                url.servers,
                url.topic,
                options=options,
                append_timeout_s=min(APPEND_TIMEOUT_S, timeout_s),
                quiet_s=2 * beat_s(timeout_s / 2),
            ) as shared,
            KafkaGroup(
                url.servers,
                url.topic,
                url.topic,
                timeout_s,
                node=settings.node,
                is_healthy=is_healthy,
                options=options,
            ) as group,
        ):
            yield Connected(
                shared, group, partial(find_dangers, url.servers, url.topic, options), group.count_twins
            )


async def serve_node(
    settings: Settings,
    *,
    clock: Clock | None = None,
    ready: Ready | None = None,
    connect: Connect | None = None,
) -> None:
    """Follow and serve until `Running.stop`, then hand over. `ready` is called when the node is up; clients can connect
    when it owns the log, and are referred to the owner until then.

    Raises TickwheelError: what cannot be started, or has ended it.
    """
    clock = clock or SystemClock()
    certificates = certificates_of(settings)
    access = open_access(
        settings, clock, verifies_clients=certificates is not None and certificates.verifies_clients
    )
    with ExitStack() as opened:
        opened.enter_context(closing(access.audit))
        watching = opened.enter_context(closing(await open_watching(settings, certificates)))
        children = opened.enter_context(closing(await open_children(settings)))
        listeners = await open_listeners(settings, certificates)
        for listener in listeners:
            opened.callback(listener.close)
        try:
            lock = DirectoryLock(Path(settings.data_dir))
        except StoreError as error:
            raise from_store(error) from error
        opened.callback(lock.release)
        process = NodeProcess(
            settings=children.settings,
            clock=clock,
            access=access,
            watching=watching,
            children=children,
            certificates=certificates,
            listeners=listeners,
        )
        try:
            try:
                async with (connect or connect_kafka)(settings, process.pulse.is_healthy) as connected:
                    await process.run(connected, ready)
            except* (SyncFailed, StoreError, OSError) as group:
                raise explain(first_error(group), lock.check) from group
        except BaseExceptionGroup as group:  # until Python 3.11.4 that of the line above is one, too
            raise first_error(group) from group
    _log.info("stopped")


class _Kept:
    """A listener that stays open when a server is done with it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.url = listener.url

    async def accept(self) -> Transport:
        """See `Listener`."""
        return await self._listener.accept()

    def close(self) -> None:
        """It is closed with the process."""


class _Stopped(Exception):
    """The node has handed over, and must not follow again."""


class _Pulse:
    """Whether the event loop turns and all parts of the broker move, for other threads."""

    def __init__(self, sight: Sight, patience_s: float) -> None:
        self._sight, self._patience_s = sight, patience_s
        self._seen_s = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._sight.is_alive:
                self._seen_s = time.monotonic()
            await trio.sleep(self._patience_s / _WATCHES_A_TIMEOUT)

    def is_healthy(self) -> bool:
        """In any thread."""
        return time.monotonic() - self._seen_s < self._patience_s


class NodeProcess:
    """One node, from its start to its end."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        access: Access,
        watching: Watching,
        children: Children,
        certificates: Certificates | None,
        listeners: list[Listener],
    ) -> None:
        self._settings, self._clock, self._access = settings, clock, access
        self._listeners: list[Listener] = [_Kept(listener) for listener in listeners]
        urls = [listener.url for listener in listeners]
        self._url = settings.advertised_url or next((url for url in urls if "+unix" not in url), "")
        self.standing = Standing(parse_cluster_url(settings.cluster).name, settings.node)
        self._running = Running(
            urls=urls,
            settings=settings,
            certificates=certificates,
            access=access,
            watching=watching,
            children=children,
        )
        self._running.sight.standing = self.standing
        self._counters = Counters()
        self._directory = Path(settings.data_dir)
        self._disk = FileDisk(self._directory)
        self._store_settings = store_settings(settings)
        self._owner_timeout_s = settings.cluster_timeout_ms / 2 / _MS_PER_S
        self._listening = trio.Lock()
        """One at a time accepts from the listeners."""
        self.pulse = _Pulse(self._running.sight, self._owner_timeout_s)
        self._is_stopping = False
        self._owns = False
        """From when the node is chosen until it follows again."""
        self._follows_again = trio.Event()

    async def run(self, connected: Connected, ready: Ready | None) -> None:
        """Until `Running.stop`. Raises what ends the node."""
        running, standing = self._running, self.standing
        shared = CountedLog(LastingLog(connected.shared), standing)
        candidacy = Candidacy(connected.membership, standing)
        with SyncThread() as self._sync_thread:
            async with trio.open_nursery() as nursery:
                assert running.watching is not None
                drain = _Drain(candidacy, self._wait_handed_over, nursery)
                nursery.start_soon(running.watching.run, running.sight, self._access, drain.begin)
                assert running.children is not None
                nursery.start_soon(running.children.run, running.urls, running.wait_stopped)
                nursery.start_soon(shared.look)
                nursery.start_soon(self._watch_settings, connected.find_dangers)
                nursery.start_soon(self._watch_number, connected.count_twins)
                nursery.start_soon(self.pulse.run)
                _log.info(
                    "started as a node",
                    cluster=standing.cluster,
                    node=standing.node,
                    urls=" ".join(running.urls),
                    **http_urls(running),
                    data_dir=self._settings.data_dir,
                )
                if ready is not None:
                    ready(running)
                with trio.CancelScope() as working:
                    nursery.start_soon(self._stop, candidacy, working)
                    await self._work(shared, candidacy)
                nursery.cancel_scope.cancel()

    async def _stop(self, candidacy: Candidacy, working: trio.CancelScope) -> None:
        """Hand over, if there is something to hand over; but do not wait for a cluster that does not answer."""
        await self._running.wait_stopped()
        self._is_stopping = True
        candidacy.withdraw(Reason.DRAINED)
        limit_s = (self._settings.drain_timeout_ms + 2 * self._settings.cluster_timeout_ms) / _MS_PER_S
        with trio.move_on_after(limit_s):
            await self._wait_handed_over()
        working.cancel()

    async def _wait_handed_over(self) -> None:
        while self._owns:
            await self._follows_again.wait()

    async def _work(self, shared: SharedLog, candidacy: Candidacy) -> None:
        kept = self._kept_genesis()
        genesis = (await wait_for_origin(shared, kept)).genesis
        _log.info("following", cluster=genesis.cluster, node=self._settings.node, log_id=genesis.log_id)
        node = Node(
            number=self._settings.node,
            shared=shared,
            membership=_Watched(candidacy, self._chosen, self._handed_over),
            clock=self._clock,
            open_replica=self._open_replica,
            open_store=self._open_store,
            serve=self._serve,
            own=OwnWords(self._url, zone_rules(), secrets.token_hex(4), self._access.fingerprint),
            owner_timeout_s=self._owner_timeout_s,
            kept=kept,
        )
        timeout_s, silence = (
            self._settings.cluster_timeout_ms / _MS_PER_S,
            Silence(node.known_owner, lambda: self.standing.listens),
        )
        watch = DiskWatch(
            candidacy=candidacy,
            standing=self.standing,
            silence=silence,
            look_at_room=self._look_at_room,
            count_refused=self._count_refused,
            patience_s=2 * timeout_s,
        )
        hold_off = HoldOff(candidacy, self.standing, silence, timeout_s)
        node.on_disk_full, node.on_given_up = watch.was_full, hold_off.begin
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._refer, node)
            nursery.start_soon(self._watch_clock, node, candidacy)
            nursery.start_soon(watch.run)
            nursery.start_soon(hold_off.run)
            try:
                await node.run()
            except _Stopped:
                nursery.cancel_scope.cancel()

    async def _watch_settings(self, find_dangers: Callable[[], Awaitable[list[str]]]) -> None:
        """Somebody may change those of the topic in Kafka: at the start, and now and then."""
        standing = self.standing
        while True:
            with suppress(SharedLogUnavailable):  # who reads says it
                before, standing.dangers = standing.dangers, await find_dangers()
                if standing.dangers and standing.dangers != before:
                    _log.error(
                        "the topic in Kafka has settings under which the log is not safe, or cannot be written",
                        differing="; ".join(standing.dangers),
                    )
                elif before and not standing.dangers:
                    _log.info("the topic in Kafka has the right settings again")
            await trio.sleep(SETTINGS_S)

    async def _watch_number(self, count_twins: Callable[[], Awaitable[int]]) -> None:
        """A process that follows writes nothing, so its twin does not hear it: the group knows both."""
        twins = 0
        while True:
            with suppress(SharedLogUnavailable):
                before, twins = twins, await count_twins()
                if twins and not before:
                    _log.error(
                        "another process follows with the number of this node: it ends once one of the two owns the "
                        "log; give each node of a cluster a number of its own (node)",
                        node=self._settings.node,
                        others=twins,
                    )
                elif before and not twins:
                    _log.info("no other process follows with the number of this node any more")
            await trio.sleep(SETTINGS_S)

    # -- the replica --

    def _kept_genesis(self) -> Genesis | None:
        mark = read_mark(self._directory)
        return unpack_genesis(mark.genesis.encode()) if mark is not None and mark.genesis else None

    def _open_replica(self, origin: Origin) -> Follower:
        if self._is_stopping:
            raise _Stopped
        genesis = origin.genesis
        mark = ReplicaMark(genesis.cluster, genesis.shard, genesis.log_id, pack_genesis(genesis).decode())
        with self._room_is_told():
            if not self._disk.segments():
                # Before there is anything that a broker of its own could go on with.
                mark_replica(self._disk, mark)
            follower = open_follower(
                self._directory, self._disk, self._store_settings, origin, self._clock.now_ms()
            )
            mark_replica(self._disk, mark)
        follower.healing.counts = self.standing.healing
        self.standing.follower = follower
        return follower

    def _open_store(self, follower: Follower) -> Store:
        with self._room_is_told():
            opened, self.standing.follower = follower.promote(), None
            return Store.of(opened, self._disk, self._store_settings, self._clock.now_ms(), follower.healing)

    @contextmanager
    def _room_is_told(self) -> Iterator[None]:
        """An error of a full disk says how much room a start needs."""
        try:
            yield
        except DiskFull as error:
            raise too_full(self._directory, error) from error.__cause__

    async def _look_at_room(self) -> Room:
        """It may hang as the disk does."""
        return await trio.to_thread.run_sync(room_of, self._settings, abandon_on_cancel=True)

    def _count_refused(self) -> int:
        """How often the broker had no room on its disk, as long as there is one."""
        watched = self._running.sight.watched
        return 0 if watched is None else watched.vitals.count_full()

    async def _watch_clock(self, node: Node, candidacy: Candidacy) -> None:
        """A node whose clock is wrong is not chosen: it would deliver early, or late."""
        standing, limit_ms = self.standing, self._settings.max_clock_skew_ms
        while True:
            skew_ms = standing.clock_skew_ms = node.skew.ms
            is_off = skew_ms is not None and abs(skew_ms) > limit_ms
            if is_off and not standing.is_off_time:
                _log.warning(
                    "the clock of this node differs from the owner's: it is not chosen until that has changed",
                    ahead_ms=skew_ms,
                    limit_ms=limit_ms,
                )
                candidacy.withdraw(Reason.CLOCK)
            elif standing.is_off_time and not is_off:
                _log.info(
                    "the clock of this node does not differ from the owner's any more", ahead_ms=skew_ms
                )
                candidacy.stand_again(Reason.CLOCK)
            standing.is_off_time = is_off
            await trio.sleep(_CLOCK_S)

    # -- owning --

    def _chosen(self) -> None:
        self._owns, self._follows_again = True, trio.Event()

    def _handed_over(self) -> None:
        self._owns = False
        self.standing.replicator = None
        self._follows_again.set()

    async def _refer(self, node: Node) -> None:
        """While this node does not serve, clients are told which one does."""
        access, counters, settings = self._access, self._counters, self._settings
        referral = Referral(
            lambda: node.known_owner.url, access, counters, settings.handshake_timeout_ms / _MS_PER_S
        )
        while True:
            async with self._listening:
                with trio.CancelScope() as self._referring:
                    await referral.run(self._listeners)
            await self._serves_no_more.wait()

    async def _serve(
        self, store: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]
    ) -> None:
        """One ownership."""
        self.standing.replicator = replicator
        await replicator.settle()  # what this node says from now on is said by the owner
        self._serves_no_more = trio.Event()
        self._referring.cancel()
        process = self._running
        running = Running(
            urls=process.urls, settings=self._settings, certificates=process.certificates, access=self._access
        )
        running.sight, running.tokens_changed = process.sight, process.tokens_changed
        _log.info("owns the log", term=replicator.term, urls=" ".join(running.urls))
        try:
            async with self._listening, trio.open_nursery() as nursery:
                broker = Broker(
                    settings=self._settings,
                    store=store,
                    clock=self._clock,
                    runner=self._sync_thread,
                    nursery=nursery,
                    access=self._access,
                    committer=replicator,
                )

                async def stop() -> None:
                    await until()
                    running.stop()

                async def guard(server: Server) -> None:
                    await self._guard(server, replicator)

                nursery.start_soon(stop)
                await serve_broker(broker, self._listeners, None, running, nursery, guard)
                nursery.cancel_scope.cancel()
        finally:
            process.sight.hide()
            self._serves_no_more.set()
            _log.info("serves no more", term=replicator.term)

    async def _guard(self, server: Server, replicator: Replicator) -> None:
        """No client waits at a node that may have been replaced: it is sent away until the node knows."""
        is_shut = False
        while True:
            if replicator.is_current == is_shut:
                is_shut = not is_shut
                if is_shut:
                    _log.warning(
                        "the cluster has not confirmed that this node owns the log", term=replicator.term
                    )
                    server.shut(NotOwner("This node does not know whether it still serves its cluster."))
                else:
                    _log.info("confirmed again that this node owns the log", term=replicator.term)
                    server.reopen()
            await trio.sleep(self._owner_timeout_s / _WATCHES_A_TIMEOUT)


class _Watched:
    """A candidacy of which the process is told when the node is chosen, and when that has ended."""

    def __init__(
        self, candidacy: Candidacy, chosen: Callable[[], None], handed_over: Callable[[], None]
    ) -> None:
        self._candidacy, self._chosen, self._handed_over = candidacy, chosen, handed_over
        self.joined, self.has_others = candidacy.joined, candidacy.has_others
        self.wait_not_chosen = candidacy.wait_not_chosen

    def left(self) -> None:
        """See `Membership`."""
        self._candidacy.left()
        self._handed_over()

    async def wait_chosen(self) -> None:
        """See `Membership`."""
        await self._candidacy.wait_chosen()
        self._chosen()


class _Drain:
    """Hands over when asked to, and lets the node stand again later."""

    def __init__(
        self, candidacy: Candidacy, wait_handed_over: Callable[[], Awaitable[None]], nursery: trio.Nursery
    ) -> None:
        self._candidacy, self._wait_handed_over, self._nursery = candidacy, wait_handed_over, nursery
        self._until_s = 0.0

    async def begin(self, seconds: float) -> None:
        """Returns when this node owns nothing. It does not stand for that long."""
        self._until_s = trio.current_time() + seconds
        _log.info("draining", stands_again_after_s=seconds)
        self._candidacy.withdraw(Reason.DRAINED)
        self._nursery.start_soon(self._end_later, self._until_s)
        await self._wait_handed_over()

    async def _end_later(self, until_s: float) -> None:
        await trio.sleep_until(until_s)
        if until_s == self._until_s:
            _log.info("stands again")
            self._candidacy.stand_again(Reason.DRAINED)
