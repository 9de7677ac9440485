"""What RocketMQ's client for Python does."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tickwheel_bench.rocketmq.stage import Stage

_SECONDS: Final = 20
_WARM_S: Final = 5
_CONSUMED: Final = 20_000
_SPARE: Final = 500
_TOPIC: Final = "bench-python"


def _sends(mode: str, threads: int, stage: Stage) -> dict[str, Any]:
    stage.server.create(_TOPIC)
    times = {"warm": stage.size(_WARM_S), "seconds": stage.size(_SECONDS, 2)}
    python = stage.programs.python()
    return stage.measured(python, mode, warm_lines=1, topic=_TOPIC, threads=threads, **times).figures()


send = partial(_sends, "send", 1)
threads = partial(_sends, "send", 16)
send_async = partial(_sends, "async", 1)


def consume(stage: Stage) -> dict[str, Any]:
    """A push consumer, of messages that wait."""
    topic = group = "bench-python-consume"
    stage.server.create(topic)
    python = stage.programs.python()
    count = stage.size(_CONSUMED, 500)
    stage.said(python, "prime", topic=topic, group=group)
    stage.said(python, "async", topic=topic, count=count + _SPARE)
    return stage.measured(python, "push", warm_lines=1, topic=topic, group=group, count=count).figures()
