"""How a cluster's log begins: its GENESIS, which is written once and read by every node; and where it stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import trio

from tickwheel.protocol.errors import TickwheelError
from tickwheel_broker.logs import get_logger
from tickwheel_broker.sharedlog.known_owner import text_of
from tickwheel_broker.sharedlog.shared_log import (
    AppendFailed,
    NoSharedLog,
    Read,
    SharedLog,
    SharedLogUnavailable,
)
from timerlog.errors import DamagedLog, LogCut
from timerlog.replication.genesis import Genesis, Upload, genesis_of, genesis_record
from timerlog.replication.origin import Origin, origin_of
from timerlog.replication.record import Head, Kind, unpack
from timerlog.replication.rule import Reader, State
from timerlog.settings import StoreSettings

_RETRY_S: Final = 1.0
_MISSED: Final = 5
"""So often it must have been missed to be taken for one that is not there."""

_LOOKS_BACK: Final = (20, 200)
_READ_S: Final = 10.0

_log = get_logger("cluster")


class NoCluster(TickwheelError):
    """There is no such cluster."""

    code = "no_cluster"
    advice = "Make it once with `tickwheel cluster init URL`; or check the name in the address."


class ClusterExists(TickwheelError):
    """There is a cluster of this name already."""

    code = "cluster_exists"
    advice = "Start its nodes with `tickwheel serve --cluster URL --node N`, or choose another name."


class UnfinishedCluster(TickwheelError):
    """The topic of a cluster has a part of the log with which the cluster is to begin."""

    code = "cluster_unfinished"
    advice = (
        "Run the same `tickwheel cluster init URL --from DIRECTORY` again: it goes on where it stopped. To begin with "
        "something else, delete the topic in Kafka first; what is in it is in that directory, too."
    )


class ClusterUnreachable(TickwheelError):
    """Kafka does not answer."""

    code = "cluster_unreachable"
    advice = "Check the addresses in the cluster's URL, that Kafka runs, and kafka_config (TLS, password)."
    retryable = True


class ClusterExtraMissing(TickwheelError):
    """What a node of a cluster needs is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[cluster]'."


class TopicNotUsable(TickwheelError):
    """The topic in Kafka cannot be what a cluster needs."""

    code = "topic_not_usable"
    advice = "Choose another name, or delete the topic in Kafka if nothing of it is needed."


class NotEnoughBrokers(TickwheelError):
    """Kafka has fewer machines than there shall be copies of the log."""

    code = "not_enough_brokers"
    advice = (
        "To try it with one broker of Kafka, give --replication-factor 1: then a lost Kafka is a lost log. "
        "For production start three."
    )


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Around the import of a module that needs the extra `cluster`, and its use. Raises ClusterExtraMissing,
    ConfigError."""
    try:
        yield
    except ImportError as error:
        if error.name is None or not error.name.startswith("confluent_kafka"):
            raise
        raise ClusterExtraMissing(f"A cluster needs {error.name}, which is not installed.") from error


async def read_origin(shared: SharedLog, kept: Genesis | None = None) -> Origin:
    """`kept`: of a log that this node has followed; then it goes on where somebody has deleted what the log begins
    with, if it has read that. Raises NoCluster, UnfinishedCluster, DamagedLog, UnsupportedFormat,
    SharedLogUnavailable."""
    first = await shared.first()
    if await shared.end() <= first:
        if not first:
            raise NoCluster("The cluster's topic in Kafka is empty.")
        if kept is None:
            raise LogCut(f"Kafka has deleted all {first} records of the cluster's log")
        return Origin(kept, None, first)
    try:
        origin = await origin_at(shared.read, first)
        if origin.upload is not None:
            await _check_whole(shared, origin.upload, first + 1)
        return origin
    except LogCut:
        if kept is None or not first:
            raise
        return Origin(kept, None, first)


async def origin_at(read: Read, first: int) -> Origin:
    """The origin of the log whose first record stands there. Raises NoCluster, DamagedLog, UnsupportedFormat,
    SharedLogUnavailable."""
    records = await read(first)
    if unpack(records[0].record) is None:
        raise NoCluster("The cluster's topic in Kafka does not begin with what a cluster begins with.")
    while (found := origin_of(records)) is None:
        records += await read(records[-1].offset + 1)
    return found


async def _check_whole(shared: SharedLog, upload: Upload, offset: int) -> None:
    """Whether all of a log counts of which the records begin at an offset. Raises UnfinishedCluster,
    SharedLogUnavailable."""
    end = await shared.end()
    reader = Reader(upload.genesis.segment_bytes, State(end=upload.first))
    while offset < end and reader.state.end < upload.end:
        for stored in await shared.read(offset):
            found = unpack(stored.record)
            if found is not None:
                reader.take(*found)
            offset = stored.offset + 1
    if reader.state.end < upload.end:
        raise UnfinishedCluster(
            f"The log with which cluster {upload.genesis.cluster!r} begins is in Kafka up to byte "
            f"{reader.state.end:,} of {upload.end:,}."
        )


async def wait_for_origin(shared: SharedLog, kept: Genesis | None = None) -> Origin:
    """As `read_origin`, but waits for a shared log that cannot be reached."""
    missed = 0
    while True:
        try:
            return await read_origin(shared, kept)
        except NoSharedLog as error:
            missed += 1
            if missed == _MISSED:
                raise NoCluster(f"Kafka has no topic of this cluster: {error}") from error
            await trio.sleep(_RETRY_S)
        except SharedLogUnavailable as error:
            _log.warning("the shared log cannot be reached", reason=str(error))
            await trio.sleep(_RETRY_S)


async def begin(shared: SharedLog, cluster: str, settings: StoreSettings, now_ms: int) -> Genesis:
    """Write the GENESIS of a new cluster. Raises ClusterExists, UnfinishedCluster, ClusterUnreachable."""
    try:
        if await shared.end():
            with suppress(NoCluster, DamagedLog):
                await read_origin(shared)
            raise ClusterExists(f"There is a cluster {cluster!r} already.")
        genesis = genesis_of(cluster, 0, int.from_bytes(os.urandom(8)), settings, began_ms=now_ms)
        await shared.append([genesis_record(genesis, now_ms)])
        found = (await read_origin(shared)).genesis
    except (SharedLogUnavailable, AppendFailed) as error:
        raise ClusterUnreachable(str(error)) from error
    if found != genesis:
        raise ClusterExists(f"Somebody else has made cluster {cluster!r} at the same moment.")
    return genesis


@dataclass(frozen=True)
class ClusterStatus:
    """What the shared log says. `owner` and what follows: None as long as there was none."""

    genesis: Genesis
    first: int
    end: int
    term: int | None
    owner: int | None
    url: str | None
    silent_ms: int | None
    """How long ago the owner wrote the last record, by its clock and ours."""


async def look_at(shared: SharedLog, now_ms: Callable[[], int]) -> ClusterStatus:
    """Read the beginning and the end of a shared log. Raises NoCluster, ClusterUnreachable, DamagedLog."""
    try:
        with trio.fail_after(_READ_S):
            origin, end = await read_origin(shared), await shared.end()
            heads = await _last_heads(shared, origin.first, end)
    except NoSharedLog as error:
        raise NoCluster(f"Kafka has no topic of this cluster: {error}") from error
    except SharedLogUnavailable as error:
        raise ClusterUnreachable(str(error)) from error
    except trio.TooSlowError as error:
        raise ClusterUnreachable(f"Kafka did not answer in {_READ_S:g} s") from error
    genesis, first = origin.genesis, origin.first
    written = [(head, body) for head, body in heads if head.node]
    if not written:
        return ClusterStatus(
            genesis=genesis, first=first, end=end, term=None, owner=None, url=None, silent_ms=None
        )
    # What a former owner wrote late has a lower term and does not count.
    term = max(head.term for head, _ in written)
    ours = [(head, body) for head, body in written if head.term == term]
    said = [body for head, body in ours if head.kind in (Kind.FENCE, Kind.BEAT)]
    url = text_of(said[-1]).partition("\n")[0] if said else ""
    last = ours[-1][0]
    return ClusterStatus(
        genesis=genesis,
        first=first,
        end=end,
        term=term,
        owner=ours[0][0].node,
        url=url or None,
        silent_ms=max(0, now_ms() - last.clock_ms),
    )


async def _last_heads(shared: SharedLog, first: int, end: int) -> list[tuple[Head, memoryview]]:
    """From where on the last owner has said something, or before which there was none: records may be large."""
    for count in _LOOKS_BACK:
        found = await _heads(shared, max(first, end - count), end)
        term = max((head.term for head, _ in found if head.node), default=0)
        said = [head for head, _ in found if head.term == term and head.kind in (Kind.FENCE, Kind.BEAT)]
        if said or not all(head.node for head, _ in found):
            break
    return found


async def _heads(shared: SharedLog, offset: int, end: int) -> list[tuple[Head, memoryview]]:
    found = []
    while offset < end:
        for stored in await shared.read(offset):
            parts = unpack(stored.record)
            if parts is not None:
                found.append(parts)
            offset = stored.offset + 1
    return found
