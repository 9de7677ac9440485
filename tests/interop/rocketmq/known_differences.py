"""What clients see otherwise of the gateway than of RocketMQ 5.3.3, and why: all of it.

`docs/how-to/from-rocketmq.md` says it to users. What is not here is a defect; what is here and does not differ any more
is to be taken out.
"""

from __future__ import annotations

from typing import Final

from tests.support.rocketmq_differences import ABSENT, LANGUAGES, Between, Known, OneOf

JAVA: Final = frozenset({"java"})
RAW: Final = frozenset({"raw"})

MADE: Final = "gRPC makes no topics there; here a topic is made when it is first used, unless that is off"
TYPES: Final = "a topic has one type there, which the client looks at; here it takes all"
PLACE: Final = "here the answer says where the expression cannot be read"
LATER: Final = "up to 20 s later than asked there"

KNOWN: Final = [
    Known(1, "unknown topic", "outcome", OneOf(("Exception", 40_402)), "ok", MADE),
    Known(1, "producer of an unknown topic", "outcome", "IllegalStateException", "ok", MADE, JAVA),
    Known(
        2,
        "key with a space",
        "keys",
        ["two", "words"],
        ["two words"],
        "keys are one text there, with spaces between them",
        JAVA,
    ),
    Known(5, "group on a normal topic", "outcome", "IllegalArgumentException", "ok", TYPES, JAVA),
    Known(5, "no group on a fifo topic", "outcome", "IllegalArgumentException", "ok", TYPES, JAVA),
    Known(6, "on a normal topic", "outcome", "IllegalArgumentException", "ok", TYPES, JAVA),
    Known(6, "recall garbage", "outcome", 50_001, 40_000, "it is said whose fault it is"),
    Known(6, "25 h", "outcome", 40_012, "ok", "there is no longest delay here, unless it is set"),
    Known(6, "recall late", "outcome", 50_001, 40_000, "it is said that it was too late"),
    Known(
        8,
        "second commit",
        "outcome",
        50_001,
        "ok",
        "the same decision again changes nothing, and comes from a lost answer",
        JAVA,
    ),
    Known(9, "change after ack", "outcome", "ok", 40_013, "the receipt has been used", JAVA),
    Known(10, "fails: waits", "waits_s", Between(1, 25), Between(1, 12), LATER),
    Known(10, "raises: waits", "waits_s", Between(1, 25), Between(1, 8), LATER),
    Known(10, "dead letter", "attempt", Between(4, 6), 1, "here a dead letter is a message of its own", JAVA),
    Known(12, "no SQL", "outcome", 50_001, 40_010, PLACE),
    *(
        Known(12, what, "outcome", 50_001, 40_010, PLACE, JAVA)
        for what in ("empty list", "half between", "no value", "open parenthesis", "sign")
    ),
    Known(
        13,
        "again",
        "bodies",
        [],
        ["unfinished"],
        "left to its lease there; here it comes again at once",
        LANGUAGES - JAVA,
    ),
    Known(13, "again, of a simple consumer", "waited_s", Between(18, 45), Between(18, 25), LATER, JAVA),
    Known(16, "send", "outcome", "IllegalArgumentException", "ok", "RocketMQ has it from 5.4 on", JAVA),
    Known(16, "received", "observed", ABSENT, True, "RocketMQ has it from 5.4 on", JAVA),
]


def known_of(language: str) -> list[Known]:
    """Those that its client observes."""
    return [one for one in KNOWN if language in one.of]
