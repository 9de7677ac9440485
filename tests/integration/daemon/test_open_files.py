"""The real daemon with few open files allowed, and more connections than that which never log in."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.clients.http_client import get
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon

pytestmark = pytest.mark.alone


def limited(count: int) -> str:
    return f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count}))"


@pytest.fixture
def many_files() -> Iterator[None]:
    """The test has as many files open as the broker. Users who are not root mostly have a limit of 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(url: str, count: int, opened: ExitStack) -> None:
    """Connections that say nothing, as fast as they can be made."""
    host, port = url.removeprefix("tickwheel://").rsplit(":", 1)
    for _ in range(count):
        with suppress(OSError):
            opened.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))


@pytest.mark.promise("a-full-disk")
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("files", [64, 256, 1024])
async def test_more_connections_than_files(tmp_path: Path, files: int) -> None:
    daemon = Daemon(
        tmp_path / "data", prelude=limited(files), segment_bytes="32MiB", http_listen=True, http_port=0
    )
    with daemon, ExitStack() as opened:
        async with tickwheel.Client(daemon.url) as known:
            await known.send("t", b"before")
            await trio.to_thread.run_sync(crowd, daemon.url, files + 100, opened)
            with trio.fail_after(PATIENCE_S):
                async with tickwheel.Client(daemon.url, connect_timeout=PATIENCE_S) as late:
                    await late.send("t", b"late")
                for number in range(3):  # tables of new topics, and a segment that is begun
                    await known.send(f"new-{number}", b"x")
                    await known.send_many("t", [bytes(1 << 20)] * 12)
            http = str(daemon.wait_for_event("started")["http"])
            assert (await trio.to_thread.run_sync(get, f"{http}/livez")).status == 200
        daemon.kill()
        with Daemon(tmp_path / "data", prelude=limited(files)) as again:
            async with tickwheel.Client(again.url) as client:
                assert (await client.stats()).messages == 5 + 3 * 12
            assert again.stop() == 0
