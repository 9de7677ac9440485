"""`tickwheel cluster`: make a cluster's log, look at it, and let a node hand over what it owns."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from tickwheel.protocol.readable import format_bytes
from tickwheel.protocol.units import parse_size_bytes
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_report, print_result
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.settings_options import say_limits, some_setting_options

if TYPE_CHECKING:
    from tickwheel_broker.config.cluster_url import ClusterUrl
    from tickwheel_broker.sharedlog.beginning import ClusterStatus
    from tickwheel_broker.sharedlog.shared_log import SharedLog
    from tickwheel_broker.sharedlog.upload import Begun
    from timerlog.replication.genesis import Genesis
    from timerlog.replication.source import Source
    from timerlog.settings import StoreSettings

T = TypeVar("T")

_ANSWER_S = 30.0
_SAY_S = 5.0


@click.group()
def cluster() -> None:
    """A log that several machines have: make it, look at it, let a node hand over.

    \b
    tickwheel cluster init kafka://k1:9092,k2:9092/orders
    tickwheel cluster init kafka://k1:9092,k2:9092/orders --from ./data
    tickwheel serve --cluster kafka://k1:9092,k2:9092/orders --node 1 --data ./data
    tickwheel cluster status kafka://k1:9092,k2:9092/orders
    tickwheel cluster drain http://node1:7412

    docs/how-to/cluster.md says how to run one, and what it promises.
    """


def _run(work: Callable[..., Awaitable[T]], place: ClusterUrl, *words: object) -> T:
    """Its errors say which Kafka was asked."""
    import trio

    from tickwheel_broker.sharedlog.beginning import ClusterUnreachable

    logging.getLogger("tickwheel.broker").addHandler(logging.NullHandler())  # its errors say it
    try:
        return trio.run(work, place, *words)
    except ClusterUnreachable as error:
        said = f"No Kafka answers at {place.servers}: {error.message}"
        raise CommandError(
            error.code, said, advice=error.advice, exit_code=ExitCode.NOT_CONNECTED, retryable=True
        ) from error


def _url(text: str) -> ClusterUrl:
    from tickwheel_broker.config.cluster_url import parse_cluster_url

    try:
        return parse_cluster_url(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@cluster.command()
@click.argument("url")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32),
    default=3,
    show_default=True,
    help="On how many of Kafka's machines each record is. A send is confirmed when more than half of them have it.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="60s",
    show_default=True,
    help="So long Kafka's machines may take that have just been started.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Begin with the log in this directory: a stopped broker's, a backup, or a node's whose cluster is lost.",
)
@some_setting_options(
    *("segment_bytes", "max_topics", "max_groups", "ack_wait", "min_backoff", "max_backoff", "purge_after"),
    "kafka_config",
)
@json_option
def init(url: str, replication_factor: int, wait: timedelta, *, source: Path | None, **flags: Any) -> None:
    """Make the topic in Kafka that holds the log of a new cluster, and write into it what holds for all nodes.

    \b
    tickwheel cluster init kafka://k1:9092,k2:9092,k3:9092/orders
    tickwheel cluster init kafka://127.0.0.1:9092/try --replication-factor 1
    tickwheel cluster init kafka://k1:9092,k2:9092,k3:9092/orders --from ./data

    The settings given here cannot be changed later, and nodes must not say otherwise. A cluster that exists is not
    touched.

    With --from, the cluster begins with all that the directory has. A stopped broker goes on as the cluster: nothing
    else starts on its directory any more. Of a backup, and of a node's directory, the cluster is what a restored
    backup is. Nodes begin with empty directories. If it ends early, the same command goes on where it stopped.
    """
    from timerlog.commitlog.log import largest_frame_bytes

    place, kafka_config = _url(url), flags.pop("kafka_config") or ""
    kafka = (replication_factor, wait.total_seconds(), kafka_config)
    if source is not None:
        begun, opened = _init_from(place, source, flags, *kafka)
        _print_begun(url, place, begun, opened)
        genesis = begun.upload.genesis
    else:
        genesis = _run(_init, place, *kafka, _store_settings(_with_limits(flags)))
        print_result(
            {"cluster": place.name, "topic": place.topic, "log_id": genesis.log_id},
            f"Cluster {place.name} is made: topic {place.topic}, log {genesis.log_id}.",
            f"Start its nodes: tickwheel serve --cluster {url} --node 1 --data DIRECTORY",
        )
    say_limits(genesis.segment_bytes, largest_frame_bytes(genesis.segment_bytes))


def _with_limits(flags: dict[str, Any]) -> dict[str, Any]:
    """With frames that fit into the segments: their size is chosen here, and frames are each node's affair."""
    from tickwheel_broker.config.load import limits_for_segments

    try:
        size_bytes = parse_size_bytes(flags["segment_bytes"] or "")
    except ValueError:
        return flags
    return limits_for_segments(size_bytes) | flags


def _store_settings(flags: dict[str, Any]) -> StoreSettings:
    from tickwheel_broker.config.load import load
    from tickwheel_broker.daemon import store_settings

    return store_settings(load(environment={}, flags=flags).settings)


async def _init(
    place: ClusterUrl, replication_factor: int, wait_s: float, kafka_config: str, settings: StoreSettings
) -> Genesis:
    from tickwheel_broker.sharedlog.beginning import begin

    async with _topic(place, replication_factor, wait_s, kafka_config) as shared:
        return await begin(shared, place.name, settings, _now_ms())


@asynccontextmanager
async def _topic(
    place: ClusterUrl, replication_factor: int, wait_s: float, kafka_config: str
) -> AsyncIterator[SharedLog]:
    """That of a cluster, which is made where it is not there."""
    from tickwheel_broker.config.cluster_url import kafka_options
    from tickwheel_broker.sharedlog.beginning import (
        ClusterUnreachable,
        NotEnoughBrokers,
        TopicNotUsable,
        kafka_errors,
    )
    from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable

    options = kafka_options(kafka_config)
    with kafka_errors():
        from tickwheel_broker.sharedlog.kafka.log import KafkaLog
        from tickwheel_broker.sharedlog.kafka.topic import (
            TooFewBrokers,
            TopicDiffers,
            TopicSettings,
            create_topic,
        )

        wanted = TopicSettings(1, replication_factor, replication_factor // 2 + 1)
        try:
            await create_topic(
                place.servers, place.topic, wanted, options, wait_s=wait_s, on_wait=_say_waiting
            )
        except TopicDiffers as error:
            raise TopicNotUsable(str(error)) from error
        except TooFewBrokers as error:
            raise NotEnoughBrokers(str(error)) from error
        except SharedLogUnavailable as error:
            raise ClusterUnreachable(str(error)) from error
        async with KafkaLog(place.servers, place.topic, options=options) as shared:
            yield shared


def _init_from(
    place: ClusterUrl, directory: Path, flags: dict[str, Any], *kafka: object
) -> tuple[Begun, Source]:
    """What was begun, and with what."""
    import msgspec

    from tickwheel_broker.sharedlog.beginning import kafka_errors
    from timerlog.replication.source import kept_settings, open_source

    with kafka_errors():
        import_module("confluent_kafka")  # said before a large log is read

    chosen = {name for name, value in flags.items() if value is not None}
    settings = kept_settings(directory, _store_settings(_with_limits(flags)), chosen)
    if "segment_bytes" not in chosen:
        settings = msgspec.structs.replace(settings, segment_bytes=0)
    with open_source(directory, settings, _Progress("Reading").add) as source:
        return _run(_upload, place, source, *kafka), source


async def _upload(
    place: ClusterUrl, source: Source, replication_factor: int, wait_s: float, kafka_config: str
) -> Begun:
    from tickwheel_broker.sharedlog.upload import begin_from

    async with _topic(place, replication_factor, wait_s, kafka_config) as shared:
        return await begin_from(shared, place.name, source, _now_ms, _Progress("Uploading").tell)


class _Progress:
    """Says now and then, on standard error, how far something is."""

    def __init__(self, what: str) -> None:
        self._what, self._done_bytes = what, 0
        self._said_s = time.monotonic()

    def add(self, more_bytes: int) -> None:
        """So much more is done, of what is not known."""
        self._done_bytes += more_bytes
        self._say(format_bytes(self._done_bytes))

    def tell(self, done_bytes: int, all_bytes: int) -> None:
        """So much is done."""
        self._say(f"{format_bytes(done_bytes)} of {format_bytes(all_bytes)}")

    def _say(self, far: str) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= _SAY_S:
            self._said_s = now_s
            click.echo(f"{self._what}: {far}.", err=True)


def _print_begun(url: str, place: ClusterUrl, begun: Begun, source: Source) -> None:
    from timerlog.replication.source import SourceKind

    genesis, is_same = begun.upload.genesis, begun.upload.genesis.log_number == source.log_id
    told = {
        "cluster": place.name,
        "topic": place.topic,
        "log_id": genesis.log_id,
        "from": source.kind.value,
        "messages": source.messages,
        "log_bytes": source.size_bytes,
        "same_log": is_same,
        "went_on": begun.went_on,
    }
    lines = [
        f"Cluster {place.name} is made: topic {place.topic}, log {genesis.log_id}.",
        f"It begins with {source.messages:,} messages, {format_bytes(source.size_bytes)} of log.",
        "It is the broker's log: nothing else starts on its directory any more."
        if is_same
        else "It is another timeline, as of a restored backup: receipts of before are stale.",
        f"Start its nodes: tickwheel serve --cluster {url} --node 1 --data DIRECTORY, each with a directory of its own"
        + (" that is empty." if source.kind is not SourceKind.BROKER else "."),
    ]
    print_result(told, *lines)


def _say_waiting(what: str) -> None:
    click.echo(f"Waiting {what}.", err=True)


@cluster.command()
@click.argument("url", required=False)
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A node's directory."
)
@some_setting_options("kafka_config")
@json_option
def status(url: str | None, data: Path | None, kafka_config: str | None) -> None:
    """Say what a cluster's log says: which node owns it, since which term, and when it was heard of last.

    \b
    tickwheel cluster status kafka://k1:9092,k2:9092,k3:9092/orders
    tickwheel cluster status --data ./data

    With --data: which cluster a node's directory belongs to, and how far it has followed. No node is asked.
    """
    data = data or current_session().data
    if (url is None) == (data is None):
        raise click.UsageError("give the cluster's URL, or a node's directory with --data")
    if data is not None:
        _print_replica(data)
    elif url is not None:
        _print_status(*_run(_look, _url(url), kafka_config or ""))


async def _look(place: ClusterUrl, kafka_config: str) -> tuple[ClusterStatus, list[str]]:
    from tickwheel_broker.config.cluster_url import kafka_options
    from tickwheel_broker.sharedlog.beginning import ClusterUnreachable, kafka_errors, look_at
    from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable

    options = kafka_options(kafka_config)
    with kafka_errors():
        from tickwheel_broker.sharedlog.kafka.log import KafkaLog
        from tickwheel_broker.sharedlog.kafka.topic import find_dangers

        async with KafkaLog(place.servers, place.topic, options=options) as shared:
            found = await look_at(shared, _now_ms)
        try:
            return found, await find_dangers(place.servers, place.topic, options)
        except SharedLogUnavailable as error:
            raise ClusterUnreachable(str(error)) from error


def _print_status(found: ClusterStatus, dangers: list[str]) -> None:
    import msgspec

    genesis = msgspec.structs.asdict(found.genesis)
    if found.owner is None or found.silent_ms is None:
        owner = "no node yet"
    else:
        where = f" at {found.url}" if found.url else ""
        owner = f"node {found.owner}{where}, term {found.term}, heard of {found.silent_ms / 1_000:.1f} s ago"
    told = [
        name for name in genesis if name.endswith(("_ms", "_bytes")) and name not in ("began_ms", "since_ms")
    ]
    rows = [
        ("cluster", f"{found.genesis.cluster}, log {found.genesis.log_id}"),
        ("owner", owner),
        ("records", f"{found.first:,} to {found.end - 1:,} in Kafka"),
        ("settings", ", ".join(f"{name} {genesis[name]:,}" for name in told)),
    ]
    if dangers:
        rows.append(("not safe", f"of the topic in Kafka, {'; '.join(dangers)}"))
    result = {
        name: getattr(found, name) for name in ("first", "end", "term", "owner", "url", "silent_ms")
    } | {"genesis": genesis, "dangers": dangers}
    print_report(result, *[f"{label:<12}{value}" for label, value in rows])


def _print_replica(directory: Path) -> None:
    """What a node's directory says of itself: to which cluster it belongs, and how far it has followed."""
    from timerlog.errors import NoDataDirectory
    from timerlog.files.disk import FileDisk
    from timerlog.files.replica_mark import read_mark
    from timerlog.recovery import checkpoint
    from timerlog.recovery.checkpoint import Place

    mark = read_mark(directory)
    if mark is None:
        raise NoDataDirectory(f"{directory} does not belong to a node of a cluster")
    last = checkpoint.load(FileDisk(directory))
    place = last.place if last is not None and isinstance(last.place, Place) else None
    far = (
        "unknown: its node owns the log, or was killed while it did"
        if place is None
        else f"record {place.offset:,} of Kafka, byte {place.end:,} of the log, term {place.term}"
    )
    told = None if place is None else {"offset": place.offset, "end": place.end, "term": place.term}
    print_report(
        {"cluster": mark.cluster, "log_id": mark.log_id, "place": told},
        f"{'cluster':<12}{mark.cluster}, log {mark.log_id}",
        f"{'followed to':<12}{far}",
    )


@cluster.command()
@click.argument("url", metavar="HTTP_URL")
@click.option(
    "--for",
    "time_out",
    type=DURATION,
    default="60s",
    show_default=True,
    help="So long the node is not chosen again; up to 1h.",
)
@json_option
def drain(url: str, time_out: timedelta) -> None:
    """Let a node hand over what it owns: another one serves then. HTTP_URL is its HTTP listener (http_listen).

    \b
    tickwheel cluster drain http://node1:7412
    tickwheel cluster drain http://node1:7412 --for 10m

    It goes on to follow, and may be chosen again after --for. To end a node, SIGTERM is enough: it hands over first.
    Where there are tokens, one with the grant admin:* is needed (--token-file, TICKWHEEL_TOKEN).
    """
    if not _is_http(url):
        raise click.UsageError(
            f"{url!r} is no address of a node's HTTP listener; write it like http://node1:7412"
        )
    seconds = time_out.total_seconds()
    if not 0 < seconds <= 3_600:
        raise click.UsageError("--for must be above 0 and at most 1h")
    found = _post(f"{url.rstrip('/')}/drain?seconds={seconds:g}")
    print_result(
        found,
        f"Node {found['node']} of cluster {found['cluster']} owns nothing, and may be chosen again in "
        f"{math.ceil(seconds)} s.",
    )


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _post(url: str) -> dict[str, Any]:
    """The answer. Raises CommandError."""
    import urllib.error
    import urllib.request

    import msgspec

    from tickwheel.client.security import security_of
    from tickwheel.client.url import TcpAddress

    request = urllib.request.Request(url, method="POST")
    security = security_of(
        ca_file=None, certificate=None, key=None, token=None, token_file=None, plain_token=False
    )
    parts = urlsplit(url)
    security.check(TcpAddress(parts.hostname or "", parts.port or 0, tls=parts.scheme == "https"))
    token = security.current_token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        context = security.context()
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context) as answer:
            found: dict[str, Any] = msgspec.json.decode(answer.read())
            return found
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(1_000).decode("utf-8", "replace").strip()
        if error.code == 401:
            raise CommandError(
                "login_required", said, advice="Give a token: --token-file, or TICKWHEEL_TOKEN."
            ) from error
        if error.code == 404:
            raise CommandError(
                "no_replica",
                f"What answers at {url} is no node of a cluster.",
                advice="Name the HTTP listener of a node.",
                exit_code=ExitCode.USAGE,
            ) from error
        if error.code == 503:
            raise CommandError(
                "not_drained",
                said,
                advice="`tickwheel cluster status` says which node owns the log.",
                retryable=True,
            ) from error
        raise CommandError("not_drained", f"The node answered {error.code}: {said}") from error
    except (OSError, ValueError, msgspec.DecodeError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise CommandError(
                "not_drained",
                f"The node at {url} has not answered in {_ANSWER_S:g} s. It may have begun to hand over.",
                advice="Look at its /readyz, and at its log.",
                retryable=True,
            ) from error
        raise CommandError(
            "not_connected",
            f"No node answers at {url}: {reason}",
            advice="Check the address, and that the node has http_listen = true.",
            exit_code=ExitCode.NOT_CONNECTED,
        ) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
