"""What clients see otherwise of the gateway than of RocketMQ 5.3.3, and why: all of it.

`docs/how-to/from-rocketmq.md` says it to users. What is not here is a defect; what is here and does not differ any more
is to be taken out.
"""

from __future__ import annotations

from typing import Final

from tests.support.rocketmq_differences import Between, Known, OneOf

KNOWN: Final = [
    Known(
        1,
        "unknown topic",
        "outcome",
        OneOf(("Exception", 40_402)),
        "ok",
        "gRPC makes no topics there; here a topic is made when it is first used, unless that is off",
    ),
    Known(6, "recall garbage", "outcome", 50_001, 40_000, "it is said whose fault it is"),
    Known(6, "25 h", "outcome", 40_012, "ok", "there is no longest delay here, unless it is set"),
    Known(6, "recall late", "outcome", 50_001, 40_000, "it is said that it was too late"),
    Known(10, "fails: waits", "waits_s", Between(1, 25), [1, 5], "up to 20 s later than asked there"),
    Known(10, "raises: waits", "waits_s", Between(1, 25), [1], "up to 20 s later than asked there"),
    Known(12, "no SQL", "outcome", 50_001, 40_010, "the expression is named"),
    Known(13, "again", "bodies", [], ["unfinished"], "left to its lease there; here it comes again at once"),
]


def known_of(language: str) -> list[Known]:
    """Those that its client observes."""
    return [one for one in KNOWN if language in one.of]
