"""Both libraries give the same answers to what clients send, cut anywhere; and HPACK is that of RFC 7541."""

from __future__ import annotations

import contextlib
import gzip
import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import hpack
import pytest
import trio
import trio.testing
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.run.profile import examples
from tests.unit.gateway.transport.conftest import require
from tests.unit.gateway.transport.peer import Service, head, serving
from tickwheel_gateway.transport.call import AnyMethod
from tickwheel_gateway.transport.engine import Headers
from tickwheel_gateway.transport.framing import framed
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server
from tickwheel_gateway.transport.stacks import available, choose
from tickwheel_gateway.transport.with_h2.frames import PREFACE

LIMITS = Limits(message_bytes=1_000, farewell_s=0.1)
SMALL = gzip.compress(b"small" * 9)


@dataclass(frozen=True)
class Asked:
    """One call as a client sends it."""

    path: str
    more: tuple[tuple[str, str], ...]
    body: bytes
    cuts: tuple[int, ...]
    """Where its DATA are cut."""
    ends: bool
    """Whether the client ends its side."""
    is_padded: bool
    parts: int
    """Of its headers, over CONTINUATIONs."""


PATHS = ["Echo", "Echo", "Times", "Chat", "Fail", "Nothing", "Break", "None", "Näh"]
HEADERS = [
    (),
    (("x-mq-client-id", "me"), ("x-mq-client-id", "you")),
    (("grpc-encoding", "gzip"),),
    (("grpc-encoding", "zip"),),
    (("grpc-encoding", "identity"),),
    (("grpc-timeout", "1H"),),
    (("grpc-timeout", "123456789S"),),
    (("grpc-timeout", ""),),
    (("large", "x" * 17_000),),
    (("content-type", "text/plain"),),
    ((":method", "GET"),),
]
BODIES = [
    framed(b"\3abc"),
    framed(b"\3abc"),
    framed(b""),
    b"",
    framed(b"\1a") + framed(b"\2b"),
    framed(b"\1a")[:-1],
    framed(bytes(1_001)),
    b"\2\0\0\0\0",
    b"\1" + framed(SMALL)[1:],
    b"\1" + framed(b"no gzip")[1:],
    b"\1" + framed(gzip.compress(bytes(5_000)))[1:],
]


def calls() -> st.SearchStrategy[Asked]:
    return st.builds(
        Asked,
        st.sampled_from(PATHS).map(lambda name: f"/t/{name}"),
        st.sampled_from(HEADERS),
        st.sampled_from(BODIES),
        st.lists(st.integers(0, 12), max_size=3).map(lambda cuts: tuple(sorted(cuts))),
        st.booleans(),
        st.booleans(),
        st.integers(1, 3),
    ).map(_ended_if_compressed)


def _ended_if_compressed(one: Asked) -> Asked:
    """With nghttp2 what is compressed is opened once the request has ended; with h2 before."""
    return replace(one, ends=True) if one.body[:1] == b"\1" else one


def frames_of(call: Asked, stream_id: int, encoder: hpack.Encoder) -> list[Frame]:
    fields = {**dict(head(call.path)), **dict(call.more)}
    twice = [pair for pair in call.more if pair[0] == "x-mq-client-id"][:1]
    block = bytes(encoder.encode([*fields.items(), *twice]))
    size = max(1, -(-len(block) // call.parts), -(-len(block) // 8))
    size = min(max(size, 1), 16_000)
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    found: list[Frame] = [HeadersFrame(stream_id, parts[0])]
    found += [ContinuationFrame(stream_id, part) for part in parts[1:]]
    found[-1].flags.add("END_HEADERS")
    edges = [0, *(cut for cut in call.cuts if cut < len(call.body)), len(call.body)]
    for start, end in itertools.pairwise(edges):
        frame = DataFrame(stream_id, call.body[start:end])
        if call.is_padded:
            frame.pad_length = 3
            frame.flags.add("PADDED")
        found.append(frame)
    if call.ends:
        found[-1 if len(found) > 1 and isinstance(found[-1], DataFrame) else 0].flags.add("END_STREAM")
    return found


OTHERS: list[Frame] = [
    PingFrame(0, b"12345678"),
    SettingsFrame(0, {4: 3}),
    SettingsFrame(0, {4: 70_000, 1: 0}),
    SettingsFrame(0, {1: 4_096, 0x99: 1}),
    WindowUpdateFrame(0, 1_000),
    PriorityFrame(0x101, depends_on=0, stream_weight=3),
]
"""What may stand between calls."""


@dataclass
class Stream:
    """What came back on one."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_over: bool = False
    reset: int | None = None


@dataclass
class Seen:
    """What came back, frame by frame."""

    streams: dict[int, Stream] = field(default_factory=lambda: defaultdict(Stream))
    pings: list[bytes] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)
    """Of GOAWAY."""

    def read(self, data: bytes) -> None:
        decoder = hpack.Decoder()
        at = 0
        while at < len(data):
            length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            body = data[at + 9 : at + 9 + length]
            assert len(body) == length, "half a frame"
            at += 9 + length
            if kind in (0, 1):
                stream = self.streams[stream_id]
                assert not stream.is_over
                if kind == 0:
                    stream.body += body
                else:
                    assert flags & 4
                    stream.headers += [(str(name), str(value)) for name, value in decoder.decode(body)]
                stream.is_over = bool(flags & 1)
            elif kind == 3:
                # After an answer it is about the rest of a request: not wanted any more, which nghttp2 can know in
                # the middle of a frame; or refused, each frame of it, where nghttp2 passes over it.
                if not self.streams[stream_id].is_over:
                    self.streams[stream_id].reset = int.from_bytes(body, "big")
            elif kind == 6 and flags & 1:
                self.pings.append(body)
            elif kind == 7:
                self.codes.add(int.from_bytes(body[4:8], "big"))


async def answers(stack: str, data: bytes, size: int) -> Seen:
    """What comes back for these bytes, given so many at a time."""
    server = Server(methods=Service().methods, limits=LIMITS, stack=stack)
    ours, theirs = trio.testing.memory_stream_pair()
    received = bytearray()

    async def take() -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while more := await ours.receive_some(1 << 16):
                received.extend(more)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        nursery.start_soon(take)
        for at in range(0, len(data), size):
            try:
                await ours.send_all(data[at : at + size])
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
        await trio.testing.wait_all_tasks_blocked()
        await ours.send_eof()
    assert (server.tally.connections, server.tally.calls) == (0, 0)
    seen = Seen()
    seen.read(bytes(received))
    return seen


async def compare(data: bytes, size: int) -> Seen:
    for name in ("nghttp2", "h2"):
        require(name)
    with trio.fail_after(60):
        found = [await answers(name, data, size) for name in ("nghttp2", "h2")]
    assert found[0] == found[1]
    return found[0]


async def check_calls(script: list[Asked | Frame], size: int) -> None:
    encoder = hpack.Encoder()
    frames: list[Frame] = [SettingsFrame(0)]
    stream_id = 1
    for one in script:
        if isinstance(one, Frame):
            frames.append(one)
        else:
            frames += frames_of(one, stream_id, encoder)
            stream_id += 2
    data = PREFACE + b"".join(frame.serialize() for frame in frames)
    seen = await compare(data, size)
    assert seen.codes == set()
    assert seen.pings == [b"12345678"] * sum(isinstance(one, PingFrame) for one in script)


def scripts() -> st.SearchStrategy[list[Asked | Frame]]:
    return st.lists(st.one_of(calls(), calls(), st.sampled_from(OTHERS)), min_size=1, max_size=8)


@settings(max_examples=15, deadline=None)
@given(scripts(), st.sampled_from([211, 3_000, 1 << 20]))
async def test_the_same_answers(script: list[Asked | Frame], size: int) -> None:
    await check_calls(script, size)


@pytest.mark.ci
@settings(max_examples=examples(150), deadline=None)
@given(scripts(), st.integers(1, 3_000))
async def test_the_same_answers_to_more(script: list[Asked | Frame], size: int) -> None:
    # A window that gets smaller between two pieces finds more or less sent by then: a matter of turns.
    await check_calls([one for one in script if not changes_windows(one)], size)


def changes_windows(one: Asked | Frame) -> bool:
    """Of streams that there are."""
    return isinstance(one, SettingsFrame) and SettingsFrame.INITIAL_WINDOW_SIZE in one.settings


@pytest.mark.parametrize("number", range(len(BODIES)))
async def test_the_same_answers_cut_at_every_byte(number: int) -> None:
    """Each byte alone; other cuts are those of the examples above."""
    script: list[Asked | Frame] = [
        Asked(path, more, BODIES[number], (5,), ends=True, is_padded=False, parts=2)
        for path, more in (("/t/Echo", HEADERS[1]), ("/t/Chat", HEADERS[2]), ("/t/Times", HEADERS[3]))
    ]
    await check_calls(script, 1)


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\1\0\0\0\0\0\0x",  # DATA of no stream
        b"\0\0\1\0\0\0\0\0\7x",  # DATA of a stream that was never opened
        b"\0\0\7\6\0\0\0\0\0" + bytes(7),  # a PING of 7 bytes
        b"\0\0\5\4\0\0\0\0\0" + bytes(5),  # half an entry of SETTINGS
        b"\0\0\6\4\1\0\0\0\0" + bytes(6),  # an ack of SETTINGS with something in it
        b"\0\0\6\4\0\0\0\0\0\0\4\xff\xff\xff\xff",  # a window that is too large
        b"\0\0\4\x08\0\0\0\0\0" + bytes(4),  # a window update of nothing
        b"\0\0\1\x09\4\0\0\0\3x",  # CONTINUATION of nothing
        b"\0\0\1\1\4\0\0\0\2x",  # an even stream
        b"\0\0\1\1\4\0\0\0\3\xff",  # no HPACK
        b"\0\0\3\3\0\0\0\0\3abc",  # RST_STREAM of 3 bytes
        b"\0\x40\1\0\0\0\0\0\1",  # a frame that is too large
        HeadersFrame(3, b"\x82").serialize() + PingFrame(0).serialize(),  # a frame within a header block
    ],
)
@pytest.mark.parametrize("size", [1, 1_000])
async def test_what_ends_a_connection(bad: bytes, size: int) -> None:
    encoder = hpack.Encoder()
    good = Asked("/t/Echo", (), framed(b"x"), (), ends=True, is_padded=False, parts=1)
    start = PREFACE + SettingsFrame(0).serialize()
    call = b"".join(frame.serialize() for frame in frames_of(good, 1, encoder))
    for name in available():
        seen = await answers(name, start + bad, size)
        assert len(seen.codes) == 1
        assert seen.codes != {0}
        assert (await answers(name, start + call, size)).streams[1].body == framed(b"x")


@dataclass
class Heard:
    """A receiver that writes down."""

    asked_: list[tuple[int, str, dict[str, str], bytes]] = field(default_factory=list)
    judged_: list[tuple[int, Headers]] = field(default_factory=list)
    began_: dict[int, tuple[str, dict[str, str]]] = field(default_factory=dict)

    def began(self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float) -> None:
        self.began_[stream_id] = method, dict(metadata)

    def asked(
        self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float, request: bytes
    ) -> None:
        self.asked_.append((stream_id, method, dict(metadata), request))

    def whole(self, stream_id: int, request: bytes) -> None:
        self.asked_.append((stream_id, *self.began_[stream_id], request))

    def arrived(self, stream_id: int, message: bytes) -> None: ...

    def ended(self, stream_id: int) -> None: ...

    def reset(self, stream_id: int) -> None: ...

    def judged(self, stream_id: int, ending: Headers) -> None:
        self.judged_.append((stream_id, ending))

    def peer_leaves(self) -> None: ...

    def farewell_heard(self) -> None: ...


PLAIN = [
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
]
"""RFC 7541, C.3: the requests, one after another on one connection."""
HUFFMAN = [
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
]
"""C.4: the same, with Huffman codes."""
LITERALS = "400a637573746f6d2d6b65790d637573746f6d2d686561646572100870617373776f726406736563726574"
"""C.2.1 and C.2.3."""


def literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


@pytest.mark.parametrize("requests", [PLAIN, HUFFMAN])
async def test_the_examples_of_hpack(requests: list[str], stack: str) -> None:
    heard = Heard()
    methods: dict[str, AnyMethod] = Service().methods
    engine = choose(stack, methods, Limits()).open(heard)
    data = PREFACE + SettingsFrame(0).serialize()
    for number, block in enumerate(requests):
        frame = HeadersFrame(2 * number + 1, bytes.fromhex(block), flags=["END_HEADERS", "END_STREAM"])
        data += frame.serialize()
    own = literal(":path", "/t/Echo") + literal("content-type", "application/grpc")
    # What those requests have entered into the table: the newest is 62.
    block = b"\x83\x86" + b"\xc0" + own + b"\xbe\xbf" + bytes.fromhex(LITERALS)
    data += HeadersFrame(7, block, flags=["END_HEADERS"]).serialize()
    data += DataFrame(7, framed(b"x"), flags=["END_STREAM"]).serialize()
    while engine.feed(data):
        data = b""
    assert [ending[0] for _, ending in heard.judged_] == [(b":status", b"405")] * 3
    metadata = {
        "content-type": "application/grpc",
        "custom-key": "custom-header",
        "cache-control": "no-cache",
        "password": "secret",
    }
    assert heard.asked_ == [(7, "/t/Echo", metadata, b"x")]
    engine.close()


@pytest.mark.usefixtures("stack")
async def test_headers_that_come_in_pieces_are_not_those_of_others() -> None:
    """Two connections whose requests arrive byte by byte, in turns: each call has its own metadata and path."""
    service = Service()
    async with serving(service) as (_, connect):
        peers = [connect(), connect()]
        asked = []
        for number, peer in enumerate(peers):
            await peer.call(b"first")
            path = "/t/Echo" if number else "/t/Nothing-of-the-kind"
            fields = head(path, x_mq_client_id=f"client-{number}", **{f"only_{number}": "here"})
            asked.append(peer.ask(b"%d" % number, headers=fields))
        texts = [peer.h2.data_to_send() for peer in peers]
        for at in range(max(map(len, texts))):
            for peer, text in zip(peers, texts, strict=True):
                if at < len(text):
                    await peer.stream.send_all(text[at : at + 1])
                    await trio.testing.wait_all_tasks_blocked()
        unknown, echoed = [await peer.answer(stream_id) for peer, stream_id in zip(peers, asked, strict=True)]
    assert unknown.headers["grpc-message"] == "method '/t/Nothing-of-the-kind' is unknown"
    assert echoed.messages == [b"1"]
    metadata = service.seen[-1].metadata
    assert metadata["x-mq-client-id"] == "client-1"
    assert metadata["only-1"] == "here"
    assert "only-0" not in metadata
