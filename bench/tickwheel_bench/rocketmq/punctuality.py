"""How late the broker is by itself, and how late beside a gateway that has all the work it can do."""

from __future__ import annotations

from typing import Any, Final

import anyio

from tickwheel import Client
from tickwheel.stats import Histogram
from tickwheel_bench.figures import p99_later_ms
from tickwheel_bench.load.lateness import lateness_of
from tickwheel_bench.rocketmq.stage import Stage

_DUE_PER_S: Final = 2_000
_SECONDS: Final = 15.0
_LEAST_S: Final = 2.0
_ENDLESS: Final = 1_000_000
_ROUND: Final = 10_000
_WARM: Final = 2
_LATENESS: Final = "delivery_lateness_seconds"


def beside_a_gateway(stage: Stage) -> dict[str, Any]:
    """A topic of 2,000 due each second, at a client of Tickwheel; the broker's own histogram of it; and the same beside
    a producer in Java that sends as fast as it is answered."""
    stage.server.create("bench-load")
    seconds = max(_LEAST_S, _SECONDS * stage.scale)
    java = stage.programs.java()
    quiet = _of(stage, "quiet", seconds)
    count = stage.size(_ROUND, 500)
    with stage.run(java, "produce", topic="bench-load", rounds=_ENDLESS, count=count) as load:
        for _ in range(_WARM):
            load.line()
        busy = _of(stage, "busy", seconds)
    return {
        "messages": quiet["messages"],
        "without": quiet,
        "beside": busy,
        "p99_later_ms": p99_later_ms(busy, quiet),
    }


def _of(stage: Stage, topic: str, seconds: float) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with Client(stage.server.broker_url) as client:
            found = await lateness_of(client, topic, seconds, _DUE_PER_S)
            return found | {"broker_ms": await _by_the_broker(client, topic)}

    return anyio.run(work, backend="asyncio")


async def _by_the_broker(client: Client, topic: str) -> dict[str, float]:
    figures = await client.figures()
    bounds = figures.histograms[_LATENESS].bounds
    (counts,) = (one.lateness for one in figures.topics if one.name == topic)
    own = Histogram(bounds, counts, 0.0)
    return {name: own.quantile(share) * 1e3 for name, share in (("p50", 0.5), ("p99", 0.99))}
