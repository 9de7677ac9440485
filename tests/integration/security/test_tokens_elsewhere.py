"""Tokens where there is no TCP: metrics, the Unix socket, the embedded broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.integration.watching.test_http import http_url
from tests.support.clients.http_client import get
from tests.support.processes.daemon_harness import PATIENCE_S, RawConnection
from tests.support.processes.guarded import Place
from tickwheel.errors import Forbidden
from tickwheel.protocol.bodies.requests import encode_body, hello
from tickwheel.protocol.frames import FrameType, encode_frame

HTTP = {"http_listen": True, "http_port": 0}


def test_metrics_need_a_token_once_there_is_one(place: Place) -> None:
    with place.daemon(**HTTP) as daemon:
        url = http_url(daemon)
        assert get(f"{url}/metrics").status == 200
        scraper, other = place.create("scraper", "query:*"), place.create("other", "query:orders")
        place.audit.write_text("")
        while get(f"{url}/metrics").status == 200:
            daemon.wait_for_event("started")  # fails if the daemon has ended
        refused = get(f"{url}/metrics")
        assert refused.status == 401
        assert "WWW-Authenticate" in {name.title().replace("Www", "WWW") for name in refused.headers}
        for text in (other, "twk_x", scraper[:-2] + "xx"):
            assert get(f"{url}/metrics", authorization=f"Bearer {text}").status == 401
        assert get(f"{url}/metrics", authorization=scraper).status == 401
        for _ in range(20):  # as often as one likes: it is known
            assert get(f"{url}/metrics", authorization=f"Bearer {scraper}").status == 200
        assert json.loads(get(f"{url}/readyz").text) == {"ready": True}
        assert get(f"{url}/livez").status == 200
    assert {e["code"] for e in place.audited_as("metrics", "refused")} == {"bad_token"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_at_the_unix_socket_needs_a_token(place: Place, tmp_path: Path) -> None:
    """Its mode keeps others out; who changes that has not made them the owner."""
    token = place.create("shop", "all:*")
    path = tmp_path / "open.sock"
    program = (
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(20)\n"
        "s.connect('open.sock'); os.write(1, b'.')\n"
        "s.sendall(bytes.fromhex(sys.argv[1])); os.write(1, s.recv(4096))\n"
    )
    with place.daemon(unix_socket=str(path)) as daemon:
        path.chmod(0o777)
        tmp_path.chmod(0o711)

        def answer(user: int, *login: str) -> bytes:
            frame = encode_frame_of_hello(*login)
            done = subprocess.run(
                [sys.executable, "-S", "-c", program, frame.hex(), str(user)],
                cwd=tmp_path, capture_output=True, check=True, timeout=PATIENCE_S,
            )  # fmt: skip
            return done.stdout

        assert b"login_required" in answer(65534)
        assert b"tickwheel/" in answer(65534, token)
        assert b"tickwheel/" in answer(0)
        with RawConnection(daemon.unix_url) as raw:
            raw.greet()


def encode_frame_of_hello(*login: str) -> bytes:
    return encode_frame(FrameType.HELLO, 1, encode_body(hello("raw", *login)))


async def test_the_embedded_broker_is_its_owners(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await trio.to_thread.run_sync(place.create, "shop", "publish:orders")
    monkeypatch.setenv("TICKWHEEL_TOKEN", "twk_of_another_broker")
    async with tickwheel.embedded(place.data) as broker:
        async with broker.client() as owner:
            await owner.create_topic("tea")
        async with broker.client(token=token) as shop:
            await shop.send("orders", b"x")
            with pytest.raises(Forbidden):
                await shop.create_topic("coffee")
    listed = await trio.to_thread.run_sync(place.shell.text, "topics", "--json", "--data", str(place.data))
    assert {topic["name"] for topic in json.loads(listed)} == {"orders", "tea"}
