"""Calls without the costs of a client: h2load makes the same one again and again."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Final

from tickwheel_bench.program import LIMIT_S
from tickwheel_bench.rocketmq import h2load
from tickwheel_bench.rocketmq.servers import OURS
from tickwheel_bench.rocketmq.stage import Stage
from tickwheel_bench.usage import total_us, us_a_message, used_s

_COUNT: Final = 100_000
_TOPIC: Final = "bench-h2load"
_BODY: Final = os.urandom(1_024)
_MESSAGE_ID: Final = "01" + "AB" * 16

MOST_US: Final = {"Heartbeat": 200.0, "SendMessage": 150.0}
"""Of gateway and broker together, a call, with nghttp2: some times what was measured on a quiet machine (40 and 25),
because the short runs that look at it are mostly their beginning. More is a defect, and fails."""


def heartbeat(stage: Stage) -> dict[str, Any]:
    """What HTTP/2, gRPC and the way to a handler cost."""
    return _measured(stage, h2load.heartbeat())


def send_again(stage: Stage) -> dict[str, Any]:
    """A message that the broker has; RocketMQ stores it each time."""
    stage.server.create(_TOPIC)
    return _measured(stage, h2load.send(_TOPIC, _BODY, _MESSAGE_ID))


def _measured(stage: Stage, asked: h2load.Asked) -> dict[str, Any]:
    count = stage.size(_COUNT, 4_000)
    _calls(stage, asked, max(2_000, count // 5))
    before = used_s(stage.server.processes)
    found = _calls(stage, asked, count)
    cpu_us = us_a_message(before, used_s(stage.server.processes), count)
    figures = {
        "messages": count,
        "per_s": found["requests_per_s"],
        "servers_us": total_us(cpu_us),
        "cpu_us": cpu_us,
    }
    if stage.server.name == OURS:
        check(asked.method, figures["servers_us"])
    return figures


def check(method: str, us: float) -> None:
    """Raises RuntimeError if a call costs more than it may."""
    if us > MOST_US[method]:
        raise RuntimeError(
            f"a call of {method} costs {us:.0f} µs of processor time: more than {MOST_US[method]:.0f}"
        )


def _calls(stage: Stage, asked: h2load.Asked, count: int) -> dict[str, Any]:
    file = stage.folder / f"{asked.method}.bin"
    file.write_bytes(asked.body)
    program = stage.programs.h2load()
    command = h2load.command(program, stage.server.address, asked, str(file), count=count)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return h2load.parse(done.stdout + done.stderr)
