"""A conversation with a broker whose clock stands still, as bytes: what a client writes, and what it is answered.

`python -m tests.support.clients.recording FOLDER` records one, with the data directory that it leaves behind, and what
a broker answers that opens this directory. `tests/recorded/README.md` says which ones are kept, and why.
"""

from __future__ import annotations

import lzma
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tickwheel._embedded import EmbeddedBroker
from tickwheel.client.options import BrokerSettings
from tickwheel.protocol.bodies.admin import (
    Browse,
    Decide,
    DeleteTopic,
    Drop,
    GetTopic,
    Prepare,
    Purge,
    ReplayDead,
    SetTopic,
)
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.endpoints import (
    DeleteEndpoint,
    EnableEndpoint,
    GetAttempts,
    GetEndpoints,
    SetEndpoint,
    TellEndpoints,
    TestEndpoint,
)
from tickwheel.protocol.bodies.fetching import EndFetch, Fetch
from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    DeleteGroup,
    GetGroups,
    GetHistory,
    GetMessages,
    SeekGroup,
    SetGroup,
)
from tickwheel.protocol.bodies.operations import Disconnect, GetAudit, GetClients, GetEvents, GetFigures
from tickwheel.protocol.bodies.requests import (
    FRAME_TYPE_OF_REQUEST,
    Cancel,
    GetStats,
    GetTopics,
    GetWheel,
    OpenTopic,
    Ping,
    Query,
    Reschedule,
    SetCredit,
    Subscribe,
    Unsubscribe,
    encode_body,
    hello,
)
from tickwheel.protocol.bodies.schedules import DeleteSchedule, GetSchedules, SetSchedule, TriggerSchedule
from tickwheel.protocol.bodies.settling import (
    Change,
    Extend,
    MessageFilter,
    Nack,
    Redeliver,
    Return,
    Transaction,
    TransactionAck,
    TransactionChange,
)
from tickwheel.protocol.endpoint_states import ToldState
from tickwheel.protocol.frames import Frame, FrameReader, FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel.protocol.messages import SendColumns, encode_ack, encode_send, pack_column
from tickwheel.testing import ManualClock
from timerlog.settings import StoreSettings
from timerlog.store import Store

START = datetime(2030, 3, 17, 12, 0, tzinfo=UTC)
LATER = START + timedelta(hours=2, minutes=1)
SETTINGS: BrokerSettings = {
    "segment_bytes": "9MiB",
    "max_frame_bytes": "1MiB",
    "max_body_bytes": "240KiB",
    "ack_wait": "30s",
    "min_backoff": "1s",
    "max_backoff": "60s",
    "purge_after": "1h",
}
_LOG_ID = re.compile(r"\b[0-9a-f]{16}\b")
PATIENCE_S = 60.0
"""How long anything may take before a test gives up."""
QUIET_S = 1.0
"""When nothing came for so long while recording, nothing more comes."""
_SESSION = 0x1122_3344_5566_7788
SAID_SINCE = frozenset({"counts_attempts", "timeline", "probes"})
"""What answers have told since, which clients of version 0.1 pass over."""
MASKED = {
    "max_headers_bytes",
    "log_id",
    "directory",
    "log_position",
    "uptime_ms",
    "appended_bytes",
    "durable_bytes",
    "disk_bytes",
    "syncs",
    "freed_bytes",
    "moved_bytes",
    "segments",
    "purged_messages",
    "moved_messages",
    "server",
    "version",
}
"""What another directory, another version, or another moment of writing and purging answers otherwise."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A client's frame, and what the broker sends for it: first what it was not asked for, then the answer.

    `advance_ms`: how far the clock is moved before. `times`: how often the frame is written, one behind the other.
    `again`: what it looks at comes about soon; it is asked again until the answer is the recorded one.
    """

    what: str
    client: str
    broker: list[str] = []
    advance_ms: int = 0
    times: int = 1
    again: bool = False


class Script:
    """The steps of a conversation, in order, as today's client writes them."""

    def __init__(self, name: str, number: int = 0) -> None:
        """`number`: that of the last request of the session before."""
        self.steps: list[Step] = []
        self._number = number
        self.ask(hello(name))

    def frame(self, kind: FrameType, payload: bytes, flags: int = 0, **how: Any) -> None:
        """A request as bytes, with the next correlation."""
        data = encode_frame(kind, len(self.steps) + 1, payload, flags)
        self.steps.append(Step(what=kind.name, client=data.hex(), **how))

    def ask(self, request: Request, **how: Any) -> None:
        """A request that has no identity."""
        self.frame(FRAME_TYPE_OF_REQUEST[type(request)], encode_body(request), **how)

    def change(self, request: Request, *, number: int = 0, **how: Any) -> None:
        """A request with the next number of the session; with a `number`: a repetition of the one that had it."""
        self._number += not number
        identity = RequestIdentity(_SESSION, number or self._number, 1, 0 if number else None)
        payload = identity.encode() + encode_body(request)
        self.frame(FRAME_TYPE_OF_REQUEST[type(request)], payload, identity.flags, **how)

    def send(self, topic_id: int, bodies: Sequence[bytes], *, times: int = 1, **columns: Any) -> None:
        """Messages."""
        self.frame(FrameType.SEND, encode_send(topic_id, SendColumns(bodies, **columns)), times=times)

    def ack(self, group_id: int, ids: Iterable[int], epochs: Iterable[int]) -> None:
        """Receipts."""
        self.frame(FrameType.ACK, encode_ack(group_id, pack_column("Q", ids), pack_column("I", epochs)))

    def wait(self, advance_ms: int = 0) -> None:
        """Until everything that is due is in its topic."""
        self.ask(GetTopics(), advance_ms=advance_ms, again=True)


def _ms(after: timedelta) -> int:
    return round((START + after).timestamp() * 1_000)


def every_request() -> list[Step]:
    """Every request at least once, and most of the ways in which it is refused."""
    talk = Script("recorder")
    talk.ask(Ping())
    talk.ask(OpenTopic("orders", True))  # topic 1
    talk.ask(OpenTopic("missing", False))
    talk.ask(OpenTopic("bad name", True))
    settings = {"ack_wait_ms": 5_000, "min_backoff_ms": 1_000, "max_attempts": 2, "priority": 60}
    talk.change(SetTopic("mails", True, settings))  # topic 2
    talk.change(SetTopic("mails", True, settings), number=1)
    talk.change(SetTopic("mails", False, {"rate": -1.0}))
    talk.change(SetTopic("parts", True, {}, shards=4))  # topics 3 to 7
    talk.ask(GetTopic("parts"))
    talk.ask(OpenTopic("gone", True))
    talk.change(DeleteTopic("gone"))
    for part in (_sends, _deliveries, _letters, _changes, _transactions, _schedules, _groups, _space, _jobs):
        part(talk)
    talk.ask(
        Query("select topic, count(*) as messages from messages group by topic order by topic", 100, 60_000)
    )
    talk.frame(FrameType.PONG, b"")
    talk.frame(FrameType.CANCEL, b"\x81")
    _looks(talk)
    return talk.steps


def later_requests() -> list[Step]:
    """The requests that version 0.1 did not know, in the order in which they came: what a client says."""
    talk = Script("later")
    talk.ask(GetFigures())
    talk.ask(GetFigures(after_topic=7, after_group=3))
    talk.ask(GetClients())
    talk.ask(GetClients(after_id=300))
    talk.ask(Disconnect(300))
    talk.ask(GetAudit())
    talk.ask(GetAudit(after=1, limit=5))
    talk.ask(Fetch("orders", "phone", 10))
    talk.ask(
        Fetch(
            topic="orders",
            group="phone",
            count=10,
            max_bytes=65_536,
            wait_ms=20_000,
            start="latest",
            lease_ms=60_000,
        )
    )
    talk.ask(EndFetch(17))
    talk.ask(Return(group_id=1, ids=[2], epochs=[1]))
    talk.change(Nack(1, [5], [1], error="poison", give_up=True))
    talk.change(Nack(1, [5], [1], 1_000, uncounted=True))
    talk.change(Decide(True, topic="orders", keys=["a"]))
    talk.ask(GetEndpoints())
    talk.ask(GetEndpoints("shop"))
    talk.ask(GetEndpoints(topic="orders", after="shop", revision=7))
    talk.change(SetEndpoint("shop", {"topic": "orders", "url": "https://shop.example/hooks"}))
    talk.change(SetEndpoint("shop", {"rate_per_s": 0.5, "give_up_on": [400]}, "earliest", 1))
    talk.change(EnableEndpoint("shop", enabled=False, reason="410"))
    talk.change(EnableEndpoint("shop", enabled=True, expected_version=3))
    talk.change(DeleteEndpoint("shop"))
    talk.change(DeleteEndpoint("shop", keep_group=True, expected_version=4))
    talk.ask(GetHistory(id=5, timeout_ms=30_000))
    talk.ask(GetHistory(topic="orders", key="a", limit=5, timeout_ms=30_000))
    talk.change(Prepare("orders", encode_send(1, SendColumns([b"asked later"])), check_after_ms=60_000))
    talk.ask(GetEvents("latest", 30_000))
    talk.ask(GetEvents((4_096, 2), 30_000, limit=5))
    talk.ask(Query("select 1", 100, 60_000, stream=True))
    talk.change(TestEndpoint("shop"))
    talk.ask(GetAttempts("shop", 30_000))
    talk.ask(GetAttempts("shop", 30_000, 5, (4_096, 2)))
    talk.ask(GetFigures(totals_only=True))
    talk.change(CreateGroup("orders", "audit", ignore_ordering_keys=True))
    talk.change(SetGroup("orders", "audit", ignore_ordering_keys=True))
    talk.ask(Fetch("orders", "phone", 10, ordered_batch=3))
    state = ToldState(endpoint="shop", name="failing", reason="HTTP 503", since_ms=1, next_ms=2)
    talk.ask(Browse(topic="orders", after_id=[7, 5]))
    talk.ask(TellEndpoints([state, ToldState(endpoint="crm", name="delivering")]))
    return talk.steps


def _sends(talk: Script) -> None:
    talk.send(
        1,
        [b"one", b"two", b"three"],  # messages 1 to 3
        deliver_at_ms=pack_column("q", [0, _ms(timedelta(seconds=30)), _ms(timedelta(days=400))]),
        priority=bytes([1, 50, 255]),
        keys=[b"a", b"b", b"c"],
        headers=[msgspec.msgpack.encode({"n": number}) for number in range(3)],
        order_keys=[b"", b"o", b"o"],
    )
    talk.send(1, [b"one", b"new"], keys=[b"a", b"d"], deliver_at_ms=60_000, relative=True)  # 4
    talk.send(1, [bytes(250_000), b"ok"], keys=[b"x", b"y"])  # 5
    talk.send(99, [b"lost"])
    talk.frame(FrameType.SEND, b"short")
    talk.send(3, [b"shard %d" % n for n in range(8)], keys=[b"k%d" % n for n in range(8)])  # 6 to 13


def _deliveries(talk: Script) -> None:
    talk.wait()
    talk.ask(Subscribe("orders", "phone", 10, 10, holds=True))  # group 1: messages 1 and 5
    talk.ack(1, [1, 1, 77], [1, 9, 1])
    talk.change(Nack(1, [5], [1], 2_000, "busy"))
    talk.change(Nack(1, [5], [1], 2_000, "busy"), number=5)
    talk.ask(Ping(), advance_ms=2_000)  # message 5 again
    talk.ask(Extend(1, [5, 1], [2, 1], 60_000))
    talk.ask(Ping(), advance_ms=28_000)  # message 2
    talk.change(SetTopic("orders", False, {"ack_wait_ms": 40_000}))
    talk.ask(Return(subscription=1, ids=[2], epochs=[1]))
    talk.ask(Unsubscribe(1))
    talk.ask(Unsubscribe(1))
    talk.ask(Subscribe("orders", "phone", 1, 1))
    talk.ask(SetCredit(2, 5))
    talk.ask(Subscribe("parts", "all", 20, 20, shard="-40"))
    talk.ask(Subscribe("parts", "all", 20, 20, shard="-41"))
    talk.ask(Subscribe("parts", "all", 10**6, 1))


def _letters(talk: Script) -> None:
    talk.send(2, [b"letter", b"second"], keys=[b"l", b"m"])
    talk.wait()
    talk.ask(Subscribe("mails", "post", 10, 10))
    talk.ask(GetGroups("mails"), again=True)
    talk.change(Nack(7, [14], [1], 0, "no such street"))
    talk.change(Nack(7, [14], [2], 0, "none at all"))
    talk.wait()
    talk.ask(Browse("mails.dead"))
    talk.ask(Browse("mails"))
    talk.change(ReplayDead("mails", limit=1))
    talk.change(Nack(7, [14], [3], 0, "again"))
    talk.change(Nack(7, [14], [4], 0, "again"))
    talk.ask(GetMessages([14, 15, 999]))
    talk.ask(GetMessages(topic="orders", keys=["a", "b", "none"]))
    talk.ask(Ping(), advance_ms=6_000)


def _changes(talk: Script) -> None:
    in_two_days = _ms(timedelta(days=2))
    keys = [b"c%d" % number for number in range(6)]
    talk.send(1, [b"body of " + key for key in keys], keys=keys, deliver_at_ms=in_two_days)
    talk.change(Cancel([1, 999]))
    talk.change(Cancel(topic="orders", keys=["c0", "none"]))
    talk.change(Reschedule(topic="orders", keys=["c1"], deliver_at_ms=_ms(timedelta(days=3)), priority=7))
    talk.change(Reschedule([1], delay_ms=5))
    talk.change(Redeliver([1], acked=True, delay_ms=86_400_000))
    found = MessageFilter(states=["scheduled"], due_from_ms=in_two_days, priority_min=10)
    talk.change(Change("cancel", "orders", found, dry_run=True))
    talk.change(Change("reschedule", "orders", found, priority=9, limit=2))
    talk.change(Change("cancel", "nowhere"))


def _transactions(talk: Script) -> None:
    due = _ms(timedelta(days=1))
    sent = encode_send(1, SendColumns([b"in a transaction"], keys=[b"t"], deliver_at_ms=due))
    parts = Transaction(b"transaction-0001", [sent], changes=[TransactionChange(topic="orders", keys=["c2"])])
    talk.change(parts)
    talk.change(parts)
    talk.change(Transaction(b"transaction-0002", [sent], [TransactionAck(1, [3], [1])]))
    talk.change(Prepare("orders", encode_send(0, SendColumns([b"sold", b"kept"], keys=[b"p", b"q"]))))
    talk.wait()
    talk.change(Decide(True, [25]))
    talk.change(Decide(False, [26]))
    talk.change(Prepare("orders", encode_send(0, SendColumns([b"undecided"], keys=[b"u"]))))


def _schedules(talk: Script) -> None:
    month_ms, start = 30 * 86_400_000, timedelta(days=10)
    monthly = {"topic": "orders", "every_ms": month_ms, "start_ms": _ms(start), "body": b"tick"}
    talk.change(SetSchedule("monthly", monthly, True))
    talk.change(SetSchedule("daily", {"topic": "mails", "cron": "0 3 * * *", "tz": "Europe/Berlin"}, True))
    talk.change(SetSchedule("bad", {"topic": "mails", "cron": "every day"}, True))
    talk.change(TriggerSchedule("daily", "token"))
    talk.change(TriggerSchedule("daily", "token"))
    talk.change(DeleteSchedule("daily"))
    talk.ask(GetSchedules(count=2), again=True)


def _groups(talk: Script) -> None:
    talk.change(CreateGroup("orders", "report", "latest"))
    talk.change(CreateGroup("orders", "report", "latest"))
    talk.change(CreateGroup("orders", "short", ephemeral_ms=1_000))
    talk.change(SeekGroup("orders", "report", "earliest"))
    talk.change(SeekGroup("orders", "phone", "earliest"))
    talk.change(DeleteGroup("orders", "phone"))
    talk.ask(Unsubscribe(2))
    talk.change(DeleteGroup("orders", "phone"))
    for number in (3, 4, 5):
        talk.ask(Unsubscribe(number))
    talk.ask(GetGroups(), again=True)


def _space(talk: Script) -> None:
    """Three segments of messages that are cancelled, and then purged."""
    talk.ask(OpenTopic("bulk", True))  # topic 11
    talk.send(11, [bytes(240_000)] * 4, deliver_at_ms=_ms(timedelta(days=300)), times=22)
    talk.change(Change("cancel", "bulk"))
    talk.wait(7_200_000)
    talk.change(Purge(dry_run=True, wait_ms=60_000))
    talk.change(Purge(wait_ms=60_000))
    talk.change(Drop([]))
    talk.change(Drop([(1, 5)], "0" * 16, 1))
    talk.ask(Subscribe("mails", "post", 10, 10))  # what it holds when the broker stops
    talk.ask(Subscribe("orders", "report", 2, 2))


def _jobs(talk: Script) -> None:
    talk.ask(PlanJob("ab" * 16, ["planned"]))
    talk.change(ReserveIds(16))
    talk.ask(AdoptJob("cd" * 16, wait_ms=10_000))


def _looks(talk: Script) -> None:
    talk.ask(GetStats(), again=True)
    talk.ask(GetTopics(), again=True)
    talk.ask(GetWheel(), again=True)
    talk.ask(GetWheel([1_000, 86_400_000]), again=True)


def after_opening() -> list[Step]:
    """What a broker is asked that opens what `every_request` has left behind."""
    talk = Script("reader", 100)
    settings = {"ack_wait_ms": 5_000, "min_backoff_ms": 1_000, "max_attempts": 2, "priority": 60}
    talk.change(SetTopic("mails", True, settings), number=1)
    talk.change(Nack(1, [5], [1], 2_000, "busy"), number=5)
    talk.change(Drop([]))
    talk.wait()
    talk.ask(GetGroups(), again=True)
    talk.ask(GetSchedules(), again=True)
    for topic in ("orders", "mails", "mails.dead", "parts", "bulk"):
        talk.ask(GetTopic(topic))
        talk.ask(Browse(topic), again=True)
    talk.ask(GetMessages(list(range(1, 40))))
    talk.ask(Subscribe("orders", "report", 100, 100))
    talk.ask(Subscribe("orders", "afterwards", 100, 100))
    talk.ask(Subscribe("parts", "all", 100, 100))
    talk.ask(Subscribe("mails", "post", 100, 100))
    talk.send(1, [b"one"], keys=[b"c"])
    talk.change(Cancel(topic="orders", keys=["c", "t"]))
    talk.change(TriggerSchedule("monthly", "now"))
    talk.change(ReplayDead("mails"))
    talk.change(Decide(True, [26, 28]))
    for number in (1, 2, 3, 4):
        talk.ask(Unsubscribe(number))
    talk.wait(20 * 86_400_000)
    _looks(talk)
    return talk.steps


# -- saying it ---------------------------------------------------------------------------------------------------


class Line:
    """A connection to a broker, and the broker's clock."""

    def __init__(self, broker: EmbeddedBroker, clock: ManualClock) -> None:
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(broker.url.removeprefix("tickwheel+unix://"))
        self._reader = FrameReader(1 << 26)

    def record(self, step: Step) -> Step:
        """The step, with everything that the broker sends until it is quiet; of one that is asked again, what is said
        twice.
        """
        self._say(step)
        frames = self._until_quiet(step.times)
        while step.again:
            before = frames[-1]
            self._socket.sendall(bytes.fromhex(step.client))
            frames = [*frames[:-1], *self._until_quiet()]
            if masked(frames[-1]) == masked(before):
                break
        return msgspec.structs.replace(step, broker=sorted(frames, key=_order))

    def _until_quiet(self, answers: int = 1) -> list[str]:
        frames: list[str] = []
        while (found := self._receive(PATIENCE_S if answers else QUIET_S)) is not None:
            answers -= found.correlation != 0
            frames.append(_hex(found))
        return frames

    def replay(self, step: Step) -> list[str]:
        """As many frames as were recorded."""
        deadline = time.monotonic() + PATIENCE_S
        self._say(step)
        while True:
            found = (self._receive(PATIENCE_S) for _ in step.broker)
            frames = sorted((_hex(frame) for frame in found if frame is not None), key=_order)
            if (
                not step.again
                or _masked_all(frames) == _masked_all(step.broker)
                or time.monotonic() > deadline
            ):
                return frames
            time.sleep(0.02)
            self._socket.sendall(bytes.fromhex(step.client))

    def _say(self, step: Step) -> None:
        if step.advance_ms:
            self._clock.advance(timedelta(milliseconds=step.advance_ms))
        self._socket.sendall(bytes.fromhex(step.client) * step.times)

    def _receive(self, patience_s: float) -> Frame | None:
        self._socket.settimeout(patience_s)
        while (frame := self._reader.next_frame()) is None:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not data:
                return None
            self._reader.feed(data)
        return frame

    def rest(self) -> list[str]:
        """What the broker says when it stops."""
        frames = []
        while (frame := self._receive(PATIENCE_S)) is not None:
            frames.append(_hex(frame))
        return frames

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def _hex(frame: Frame) -> str:
    return encode_frame(frame.type, frame.correlation, frame.payload, frame.flags).hex()


def _order(frame: str) -> tuple[bool, str]:
    """Unasked frames first. Two groups are given theirs in any order."""
    return frame[24:32] != "00000000", masked(frame)


def _masked_all(frames: Sequence[str]) -> list[str]:
    return [masked(frame) for frame in frames]


def masked(frame: str) -> str:
    """A frame as text, without what another run answers otherwise."""
    data = bytes.fromhex(frame)
    try:
        body = msgspec.msgpack.decode(data[16:])
    except msgspec.DecodeError:
        return frame
    if not isinstance(body, dict):
        return frame
    return f"{data[8:16].hex()} {_without(body)!r}"


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "..." if name in MASKED else _without(inner)
            for name, inner in value.items()
            if name not in SAID_SINCE
        }
    if isinstance(value, list):
        return [_without(inner) for inner in value]
    return _LOG_ID.sub("...", value) if isinstance(value, str) else value


@contextmanager
def serving(directory: Path, start: datetime) -> Iterator[tuple[EmbeddedBroker, Line]]:
    """A broker on a directory whose clock stands at `start`, and a connection to it."""
    clock = ManualClock(start)
    with EmbeddedBroker(directory, clock, SETTINGS) as broker, closing(Line(broker, clock)) as line:
        yield broker, line


def state_hash(directory: Path) -> str:
    """That of the state which a start makes of a directory."""
    store = Store.open(directory, StoreSettings(max_frame_bytes=1 << 20), round(LATER.timestamp() * 1_000))
    try:
        return store.look.state_hash()
    finally:
        store.close()


def main(folder: Path) -> None:
    """Record everything into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        data, killed = Path(scratch, "closed"), Path(scratch, "killed")
        with serving(data, START) as (broker, line):
            steps = [line.record(step) for step in every_request()]
            shutil.copytree(data, killed)
            broker.close()
            steps.append(Step(what="the end", client="", broker=line.rest()))
        _save(folder / "session.json.xz", {"steps": steps})
        with tarfile.open(folder / "directories.tar.xz", "w:xz") as archive:
            for kept in (killed, data):
                archive.add(kept, kept.name, filter=_anonymous)
        hashes = {}
        for kept in (killed, data):
            copy = Path(scratch, f"{kept.name}-hashed")
            shutil.copytree(kept, copy)
            hashes[kept.name] = state_hash(copy)
        with serving(data, LATER) as (_, line):
            steps = [line.record(step) for step in after_opening()]
        _save(folder / "opened.json.xz", {"state_hash": hashes, "steps": steps})


def later_lines() -> Iterator[str]:
    """`later_requests`, a line each: `python -c "from tests.support.clients.recording import later_lines;
    print(*later_lines(), sep='\\n')" > tests/recorded/later.txt` when one was added."""
    yield from (f"{step.what} {step.client}" for step in later_requests())


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def _save(path: Path, content: object) -> None:
    path.write_bytes(lzma.compress(msgspec.json.encode(content)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
