"""Sends over HTTP through `tickwheel serve --web`, durable; and how punctual the broker is meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.lateness import LEAD_MS, lateness_of
from tickwheel_bench.load.messages import schedule

_DUE_PER_S: Final = 2_000
_SECONDS: Final = 15.0
_RATE: Final = 2_000
_WAITED_PER_S: Final = 500


def http(directory: Path, scale: float) -> dict[str, Any]:
    """Single sends from 64 connections, as fast as they are answered and 2,000/s; who waits by a poll and by a stream;
    2,000 due each second without and beside single sends as fast as they are answered; and batches from 4 at the end,
    because the broker then has millions of messages. Processor time is that of each process, the load's, too."""
    seconds = max(1.0, _SECONDS * scale)
    with Daemon(directory, "--web", "--web-port", "0") as daemon:
        (url,) = daemon.announced["web"]
        _load(url, seconds=1.0).communicate()  # connects, makes the topic
        single = _measured(daemon, url, seconds=seconds)
        paced = _measured(daemon, url, seconds=seconds, rate=_RATE)
        waiting = {kind: _waiting(daemon.url, url, kind, seconds) for kind in ("poll", "stream")}
        quiet = anyio.run(lateness_of, daemon.url, "quiet", seconds, _DUE_PER_S, backend="asyncio")
        beside = _load(url, seconds=seconds + LEAD_MS / 1_000 + 1)
        busy = anyio.run(lateness_of, daemon.url, "busy", seconds, _DUE_PER_S, backend="asyncio")
        beside_figures = _figures(beside)
        batch = _measured(daemon, url, seconds=seconds, connections=4, batch=1_000)
    return {
        "single": single,
        "single_at_2000_per_s": paced,
        f"late_at_{_WAITED_PER_S}_per_s": waiting,
        "ndjson_batches_of_1000": batch,
        "without": quiet,
        "beside_single_sends": busy | {"requests_per_s": beside_figures["requests_per_s"]},
        "p99_later_ms": round(busy["late_ms"]["p99"] - quiet["late_ms"]["p99"], 3),
    }


def _measured(daemon: Daemon, url: str, *, seconds: float, **how: int) -> dict[str, Any]:
    """A load, and what it costs web and broker."""
    web_s, broker_s = daemon.children_cpu_s(), daemon.cpu_s()
    found = _figures(_load(url, seconds=seconds, **how))
    requests = found["requests"]
    used_s = {"web": daemon.children_cpu_s() - web_s, "broker": daemon.cpu_s() - broker_s}
    return found | {
        f"{name}_cpu_ms_a_request": round(cpu_s * 1_000 / requests, 3) for name, cpu_s in used_s.items()
    }


def _load(
    url: str, *, seconds: float, connections: int = 64, batch: int = 0, rate: int = 0
) -> subprocess.Popen[str]:
    options = {"--seconds": seconds, "--connections": connections, "--batch": batch, "--rate": rate}
    words = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "tickwheel_bench.web.load", url, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _figures(load: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = load.communicate()
    if load.returncode:
        raise RuntimeError(f"the load ended with {load.returncode}")
    figures: dict[str, Any] = json.loads(said)
    return figures


def _waiting(broker_url: str, url: str, kind: str, seconds: float) -> dict[str, Any]:
    """Who waits over HTTP for messages that get due evenly."""
    count = int(seconds * _WAITED_PER_S)
    anyio.run(_schedule_waited, broker_url, kind, count, backend="asyncio")
    command = [sys.executable, "-m", "tickwheel_bench.web.waiting", url, kind, kind, str(count)]
    return _figures(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


async def _schedule_waited(broker_url: str, topic: str, count: int) -> None:
    async with Client(broker_url) as client:
        start_ms = int(time.time() * 1_000) + LEAD_MS
        await schedule(client, topic, start_ms + np.arange(count) * 1_000 // _WAITED_PER_S)
