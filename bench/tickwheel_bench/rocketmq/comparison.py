"""The gateway with RocketMQ's own clients, and RocketMQ itself beside it: all figures, or some."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tickwheel_bench.rocketmq import java_loads, punctuality, raw_loads, their_server, timed_loads
from tickwheel_bench.rocketmq.clients import Missing, Programs
from tickwheel_bench.rocketmq.servers import OURS, THEIRS, running
from tickwheel_bench.rocketmq.stage import Stage
from tickwheel_bench.rocketmq.table import Row, table

SERVERS: Final = (OURS, *THEIRS)
_FLUSH_DOES_NOT_MATTER: Final = (OURS, "rocketmq-async")
_RULE: Final = "#" * 99


class Figure(NamedTuple):
    """What can be measured by itself."""

    what: str
    goal: str
    measure: Callable[[Stage], dict[str, Any]]
    servers: tuple[str, ...] = SERVERS


FIGURES: Final[dict[str, Figure]] = {
    "produce": Figure("Java async producer, 256 at a time", "≤ 60 µs, ≥ 20,000/s", java_loads.produce),
    "consume": Figure("Java push consumer, each message acked", "≤ 60 µs, ≥ 15,000/s", java_loads.consume),
    "both": Figure("Java, both at once, 1,000/s", "–", java_loads.both),
    "single": Figure("Java, one send at a time", "p50 ≤ fdatasync + 1 ms", java_loads.single),
    "python-send": Figure("Python, 1 thread", "≥ 500/s", timed_loads.python_send, _FLUSH_DOES_NOT_MATTER),
    "python-threads": Figure(
        "Python, 16 threads", "≥ 1,400/s", timed_loads.python_threads, _FLUSH_DOES_NOT_MATTER
    ),
    "python-async": Figure(
        "Python, send_async", "≥ 1,700/s", timed_loads.python_async, _FLUSH_DOES_NOT_MATTER
    ),
    "python-consume": Figure("Python push consumer", "–", timed_loads.python_consume, _FLUSH_DOES_NOT_MATTER),
    "go-send": Figure("Go, 1 goroutine", "–", timed_loads.go_send, _FLUSH_DOES_NOT_MATTER),
    "go-goroutines": Figure("Go, 64 goroutines", "–", timed_loads.go_goroutines, _FLUSH_DOES_NOT_MATTER),
    "h2load-heartbeat": Figure("h2load, Heartbeat", "–", raw_loads.heartbeat, _FLUSH_DOES_NOT_MATTER),
    "h2load-send": Figure("h2load, SendMessage, one id", "–", raw_loads.send_again, _FLUSH_DOES_NOT_MATTER),
    "retry": Figure(
        "retry of a Java push consumer after 1 s", "≤ 5 ms late", java_loads.retry, _FLUSH_DOES_NOT_MATTER
    ),
    "delayed": Figure(
        "100,000 delayed messages over 60 s", "p99 ≤ 5 ms late", java_loads.delayed, _FLUSH_DOES_NOT_MATTER
    ),
    "lateness": Figure("the broker, 2,000 due/s", "p99 < 1 ms later", punctuality.beside_a_gateway, (OURS,)),
}


def rocketmq(
    directory: Path, scale: float, only: Sequence[str] = (), servers: Sequence[str] = ()
) -> dict[str, Any]:
    """`only`: these figures; `servers`: of these. Prints the table. What has failed is in ``failed``."""
    names = [name for name in FIGURES if not only or name in only]
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    programs = Programs(directory.parent)
    for server in SERVERS:
        wanted = [name for name in names if server in FIGURES[name].servers]
        if wanted and (not servers or server in servers):
            for name, figures in _of(server, wanted, programs, directory.parent, scale).items():
                found[name][server] = figures
    rows = [Row(name, FIGURES[name].what, FIGURES[name].goal, found[name]) for name in names]
    shown = [server for server in SERVERS if any(server in each for each in found.values())]
    print("\n".join(table(rows, shown)), flush=True)
    failed = [
        f"{name} ({server}): {figures['failed_with']}"
        for name, by_server in found.items()
        for server, figures in by_server.items()
        if "failed_with" in figures
    ]
    return {"figures": found, "failed": failed}


def _of(
    server: str, names: Sequence[str], programs: Programs, folder: Path, scale: float
) -> dict[str, dict[str, Any]]:
    """Figures of one server, one after the other, on one that runs all the time."""
    if server != OURS and (why := their_server.fetch() or their_server.missing()):
        return dict.fromkeys(names, _missing(server, why))
    found = {}
    with running(server, folder / server / "data") as running_server:
        for name in names:
            stage = Stage(running_server, programs, scale, folder)
            found[name] = _figures(stage, name)
            print(f"{server} {name}: {json.dumps(found[name])}", flush=True)
    return found


def _figures(stage: Stage, name: str) -> dict[str, Any]:
    """One that fails does not end the others."""
    try:
        return FIGURES[name].measure(stage)
    except Missing as error:
        return _missing(name, str(error))
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired, AssertionError) as error:
        return {"failed_with": str(error) or type(error).__name__}


def _missing(what: str, why: str) -> dict[str, Any]:
    print(f"{_RULE}\n{what} is NOT MEASURED: {why}\n{_RULE}", file=sys.stderr, flush=True)
    return {"missing": why}
