"""What RocketMQ's client for Go does: it sends, and waits for each answer."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tickwheel_bench.rocketmq.stage import Stage

_SECONDS: Final = 20
_WARM_S: Final = 5
_TOPIC: Final = "bench-go"


def _sends(goroutines: int, stage: Stage) -> dict[str, Any]:
    go = stage.programs.go()
    stage.server.create(_TOPIC)
    times = {"warm": stage.size(_WARM_S), "seconds": stage.size(_SECONDS, 2)}
    return stage.measured(go, "send", warm_lines=1, topic=_TOPIC, threads=goroutines, **times).figures()


send = partial(_sends, 1)
goroutines = partial(_sends, 64)
