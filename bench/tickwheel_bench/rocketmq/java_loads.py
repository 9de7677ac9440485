"""What RocketMQ's client for Java does: sends, push consumers, messages for later."""

from __future__ import annotations

from typing import Any, Final

from tickwheel_bench import machine
from tickwheel_bench.rocketmq.stage import Stage

ROUNDS: Final = 4
WARM: Final = 2
"""Of these rounds: a JVM compiles what it does often, on both sides."""
ROUND: Final = 60_000
_SPARE: Final = 500
"""So many more wait than are consumed: what a poll held that was broken off comes only after its lease."""
_RATE: Final = 1_000
_WARM_S: Final = 10
_SECONDS: Final = 30
_DELAYED_WARM: Final = 50_000
"""As many as it takes: the p99 of a JVM that has just begun is that of its compiler."""
_DELAYED: Final = 100_000
_OVER_MS: Final = 60_000
_LEAD_MS: Final = 10_000
_LEAST_SENT_PER_S: Final = 2_000
_SINGLE_WARM: Final = 20_000
_SINGLE: Final = 5_000
_RETRIED_WARM: Final = 3_000
_RETRIED: Final = 20


def produce(stage: Stage) -> dict[str, Any]:
    """Sends, 256 at a time."""
    stage.server.create("bench-produce")
    count = stage.size(ROUND, 500)
    java = stage.programs.java()
    found = stage.measured(
        java, "produce", warm_lines=WARM, topic="bench-produce", rounds=ROUNDS, count=count
    )
    return found.figures()


def consume(stage: Stage) -> dict[str, Any]:
    """A push consumer, of messages that wait; each is acked by a call of its own."""
    topic = group = "bench-consume"
    stage.server.create(topic)
    java = stage.programs.java()
    count = stage.size(ROUND, 500)
    stage.said(java, "prime", topic=topic, group=group)
    stage.said(java, "produce", topic=topic, rounds=1, count=ROUNDS * count + _SPARE)
    options = {"topic": topic, "group": group, "rounds": ROUNDS, "count": count}
    return stage.measured(java, "consume", warm_lines=WARM, **options).figures()


def both(stage: Stage) -> dict[str, Any]:
    """A producer with 1,000 messages each second, and a push consumer: how late they are there."""
    stage.server.create("bench-both")
    options = {
        "rate": _RATE,
        "warm": stage.size(_WARM_S, 2),
        "seconds": stage.size(_SECONDS, 2),
    }
    java = stage.programs.java()
    return stage.measured(
        java, "both", warm_lines=1, topic="bench-both", group="bench-both", **options
    ).figures() | {"rate": _RATE}


def single(stage: Stage) -> dict[str, Any]:
    """One send at a time, beside how long the disk takes."""
    stage.server.create("bench-single")
    options = {
        "topic": "bench-single",
        "warm": stage.size(_SINGLE_WARM, 200),
        "count": stage.size(_SINGLE, 200),
    }
    found = stage.measured(stage.programs.java(), "single", warm_lines=1, **options).figures()
    return found | {"fdatasync_ms": machine.fdatasync_ms(stage.folder, 4096)}


def delayed(stage: Stage) -> dict[str, Any]:
    """Messages that are due evenly over a minute: how late they are at a push consumer."""
    stage.server.create("bench-delayed", is_delayed=True)
    count, over_ms = stage.size(_DELAYED), stage.size(_OVER_MS)
    warm = stage.size(_DELAYED_WARM)
    lead_ms = _LEAD_MS + count * 1_000 // _LEAST_SENT_PER_S
    options = {"warm": warm, "count": count, "over_ms": over_ms, "lead_ms": lead_ms}
    topic = group = "bench-delayed"
    (line,) = stage.measured(
        stage.programs.java(), "delayed", warm_lines=3, topic=topic, group=group, **options
    ).lines
    return {name: line[name] for name in ("messages", "lost", "twice", "early", "ahead_ms", "late_ms")}


def retry(stage: Stage) -> dict[str, Any]:
    """Messages that a listener refuses once: how much later than a second they come again."""
    stage.server.create("bench-retry")
    java = stage.programs.java()
    options = {"warm": stage.size(_RETRIED_WARM, 20), "count": _RETRIED}
    _, line = stage.said(java, "retry", topic="bench-retry", group="bench-retry", **options)
    return {name: line[name] for name in ("messages", "not_again", "late_ms")}
