"""What RocketMQ's clients for Python and Go do: they send for a while, and a push consumer takes what waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tickwheel_bench.rocketmq.clients import Programs
from tickwheel_bench.rocketmq.stage import Stage

_SECONDS: Final = 20
_WARM_S: Final = 5
_CONSUMED: Final = 20_000
_SPARE: Final = 500


def _sends(
    program: Callable[[Programs], list[str]], topic: str, mode: str, threads: int, stage: Stage
) -> dict[str, Any]:
    stage.server.create(topic)
    times = {"warm": stage.size(_WARM_S), "seconds": stage.size(_SECONDS, 2)}
    command = program(stage.programs)
    return stage.measured(command, mode, warm_lines=1, topic=topic, threads=threads, **times).figures()


_python: Final = partial(_sends, Programs.python, "bench-python")
_go: Final = partial(_sends, Programs.go, "bench-go", "send")

python_send: Final = partial(_python, "send", 1)
python_threads: Final = partial(_python, "send", 16)
python_async: Final = partial(_python, "async", 1)
go_send: Final = partial(_go, 1)
go_goroutines: Final = partial(_go, 64)


def python_consume(stage: Stage) -> dict[str, Any]:
    """A push consumer, of messages that wait."""
    topic = group = "bench-python-consume"
    stage.server.create(topic)
    python = stage.programs.python()
    count = stage.size(_CONSUMED, 500)
    stage.said(python, "prime", topic=topic, group=group)
    stage.said(python, "async", topic=topic, count=count + _SPARE)
    return stage.measured(python, "push", warm_lines=1, topic=topic, group=group, count=count).figures()
