"""Sends over HTTP through `tickwheel serve --web`, durable; and how punctual the broker is meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import p99_later_ms
from tickwheel_bench.load.lateness import lateness_of
from tickwheel_bench.load.messages import LEAD_MS, schedule_evenly
from tickwheel_bench.program import Program, module_command
from tickwheel_bench.usage import ms_a_request, used_s

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
        _measured(daemon, url, seconds=1.0)  # connects, makes the topic
        single = _measured(daemon, url, seconds=seconds)
        paced = _measured(daemon, url, seconds=seconds, rate=_RATE)
        waiting = {kind: _waiting(daemon, url, kind, seconds) for kind in ("poll", "stream")}
        quiet = daemon.run(lateness_of, "quiet", seconds, _DUE_PER_S)
        with _load(url, seconds=seconds + LEAD_MS / 1_000 + 1) as beside:
            busy = daemon.run(lateness_of, "busy", seconds, _DUE_PER_S)
            beside_figures = beside.last()
        batch = _measured(daemon, url, seconds=seconds, connections=4, batch=1_000)
    return {
        "single": single,
        "single_at_2000_per_s": paced,
        f"late_at_{_WAITED_PER_S}_per_s": waiting,
        "ndjson_batches_of_1000": batch,
        "without": quiet,
        "beside_single_sends": busy | {"requests_per_s": beside_figures["requests_per_s"]},
        "p99_later_ms": p99_later_ms(busy, quiet),
    }


def _measured(daemon: Daemon, url: str, *, seconds: float, **how: int) -> dict[str, Any]:
    """A load, and what it costs web and broker."""
    processes = daemon.processes("web")
    before_s = used_s(processes)
    with _load(url, seconds=seconds, **how) as load:
        figures: dict[str, Any] = load.last()
    each_ms = ms_a_request(before_s, used_s(processes), figures["requests"])
    return figures | {f"{name}_cpu_ms_a_request": ms for name, ms in each_ms.items()}


def _load(url: str, *, seconds: float, connections: int = 64, batch: int = 0, rate: int = 0) -> Program:
    options = {"--seconds": seconds, "--connections": connections, "--batch": batch, "--rate": rate}
    words = [f"{name}={value}" for name, value in options.items()]
    return Program(module_command("tickwheel_bench.web.load", url, *words))


def _waiting(daemon: Daemon, url: str, kind: str, seconds: float) -> dict[str, Any]:
    """Who waits over HTTP for messages that get due evenly."""
    count = int(seconds * _WAITED_PER_S)
    daemon.run(schedule_evenly, kind, count, _WAITED_PER_S, LEAD_MS)
    with Program(module_command("tickwheel_bench.web.waiting", url, kind, kind, count)) as waiting:
        figures: dict[str, Any] = waiting.last()
    return figures
