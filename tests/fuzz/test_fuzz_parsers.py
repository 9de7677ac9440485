"""Any bytes and texts, and valid ones that were tampered with, for everything that reads what others wrote."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.parsers import PARSERS
from tests.support.native.native_frames import malformed_payloads
from tests.support.run.profile import amount
from tickwheel.protocol.bodies.requests import REQUEST_CLASSES

EXAMPLES = amount("parser_examples")

GOOD_TEXTS = {
    "toml": [
        'listen_port = 7411\nidle_timeout = "5m"\nmax_body_bytes = "4MiB"\n',
        'unix_socket = "/tmp/x.sock"\nlisten_tcp = false\n[table]\nx = [1, 2.5, 1979-05-27T07:32:00Z]\n',
    ],
    "settings": ["1h30m", "4MiB", "true", "65536", "1.5s", "127.0.0.1", "1s 5s 10s"],
    "url": ["tickwheel://[::1]:7411", "tickwheel://host:1", "tickwheel+unix:///tmp/a%20b.sock"],
    "vitess": [
        "vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=100,vt_poller_interval=30"
    ],
    "cron": ["*/5 * * * *", "0 9 * * MON-FRI|Europe/Paris", "0 0 29 2 *", "0 0 L * *", "1 2 3 4 5#2|UTC"],
}
# What was found here, or could be, stays.
REGRESSIONS = {
    "settings": [b"9" * 400 + b"s", b"9" * 400 + b"MiB", b"9" * 5_000],
    "url": [b"tickwheel://[", b"tickwheel://[::1", b"tickwheel://a:b:c", b"tickwheel://\xff"],
    "toml": [
        b"a = " + b"[" * 5_000,
        b"x." * 5_000 + b"y = 1",
        b"listen_port = " + b"9" * 5_000,
        b"listen_port = inf",
    ],
    "cron": [
        b"0 0 30 2 *",
        b"0 0 31 2,4,6,9,11 *",
        b"0 0 29 2 MON#5",
        b"* * * * * *",
        b"0 0 * * *|../../etc/passwd",
    ],
    "vitess": [b"vitess_message,vt_ack_wait=" + b"9" * 400, b"vitess_message,vt_ack_wait=nan"],
    "checkpoints": [b"\x81" * 20_000, b"\xd9\xff", b"\x81\xa1\xff\x01"],
    "bodies": [b"\x91" * 20_000, b"\x81\xa1\xff\x01"],
}


@st.composite
def tampered(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A valid one in which some bytes were changed, cut, repeated or put in."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "cut", "repeat", "insert"])):
            case "change" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case "repeat":
                data[at:at] = data[max(0, at - 4) : at] * draw(st.integers(1, 50))
            case "insert":
                data[at:at] = draw(
                    st.sampled_from([b"0", b"9" * 30, b"*", b"/", b",", b"-", b"\xff", b"[", b"\0", b"="])
                )
    return bytes(data)


def inputs_of(name: str) -> st.SearchStrategy[bytes]:
    texts = [text.encode() for text in GOOD_TEXTS.get(name, [])]
    if texts:
        alphabet = st.text("0123456789*/,-LW#? MON=._msh|[]:\"'\n", max_size=30).map(str.encode)
        return st.one_of(tampered(texts), tampered(texts), alphabet, st.binary(max_size=60))
    if name in ("client", "server"):
        framed = st.builds(
            lambda kind, payload: struct.pack("<BH", kind, len(payload)) + payload,
            st.one_of(st.sampled_from(sorted(REQUEST_CLASSES)), st.integers(0, 255)),
            st.one_of(
                st.binary(max_size=60), maps(), malformed_payloads().filter(lambda data: len(data) < 2_000)
            ),
        )
        stream = st.lists(framed, max_size=5).map(b"".join)
        return st.one_of(
            st.binary(max_size=200),
            st.builds(lambda how, data: bytes([how]) + data, st.integers(0, 3), stream),
        )
    return st.one_of(st.binary(max_size=200), maps(), malformed_payloads())


def maps() -> st.SearchStrategy[bytes]:
    """MessagePack with the names of fields that there are."""
    names = sorted({name for kind in REQUEST_CLASSES.values() for name in kind.__struct_fields__})
    values = st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=8),
            st.binary(max_size=16),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=6,
    )  # fmt: skip
    return st.dictionaries(st.sampled_from(names), values, max_size=6).map(msgspec.msgpack.encode)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_any_input_is_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(inputs_of(name))
    def reads(data: bytes) -> None:
        PARSERS[name](data)

    for found in REGRESSIONS.get(name, []):
        reads = example(found)(reads)
    reads()
