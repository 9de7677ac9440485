"""What clients see otherwise of the gateway than of RocketMQ 5.3.3, and why: all of it.

`docs/how-to/from-rocketmq.md` says it to users. What is not here is a defect; what is here and does not differ any more
is to be taken out.
"""

from __future__ import annotations

from typing import Final

from tests.support.rocketmq.differences import LANGUAGES, Between, Known, OneOf

_GO: Final = frozenset({"go"})
_JAVA: Final = frozenset({"java"})
_NODE: Final = frozenset({"node"})
_PYTHON: Final = frozenset({"python"})
_RAW: Final = frozenset({"raw"})
_BOTH: Final = _GO | _NODE
_THREE: Final = _BOTH | _JAVA

_MADE: Final = "gRPC makes no topics there; here a topic is made when it is first used, unless that is off"
_TYPES: Final = "a topic has one type there, which the client looks at; here it takes all"
_PLACE: Final = "the expression is named, and whose fault it is"
_LATER: Final = "up to 20 s later than asked there"
_UNSAID: Final = "who has not said what it is by telemetry has no receipts there; here it need not say"
_SQL: Final = ("equal to NULL", "more than text", "wrong way round", "IN of a literal", "bare literal")
_SQL_OF_JAVA: Final = ("empty list", "half between", "no value", "open parenthesis", "sign")

KNOWN: Final = [
    Known(1, "unknown topic", "outcome", OneOf(("Exception", 40_402)), "ok", _MADE),
    Known(
        1,
        "start with an unknown topic",
        "outcome",
        OneOf(("error", "Error", "IllegalStateException")),
        "ok",
        _MADE,
        _THREE,
    ),
    Known(
        2,
        "received",
        "properties",
        {"name": "Wert", "ümlaut": "süß", "emoji": "\U0001f680", "dots": "a.b"},
        {"name": "Wert", "ümlaut": "süß", "emoji": "\U0001f680", "dots": "a.b", "empty": ""},
        "a property without a value is lost there",
        _BOTH,
    ),
    Known(
        2,
        "key with a space",
        "keys",
        OneOf((["one", "key"], ["two", "words"])),
        OneOf((["one key"], ["two words"])),
        "keys are kept there with spaces between them; here a key is one",
        _THREE,
    ),
    Known(
        5,
        "empty group",
        "outcome",
        40_014,
        "ok",
        "an empty group is none, and there a topic of type FIFO takes no message without one",
        _GO,
    ),
    Known(5, "group on a normal topic", "outcome", "IllegalArgumentException", "ok", _TYPES, _JAVA),
    Known(5, "no group on a fifo topic", "outcome", "IllegalArgumentException", "ok", _TYPES, _JAVA),
    Known(6, "on a normal topic", "outcome", "IllegalArgumentException", "ok", _TYPES, _JAVA),
    Known(6, "recall garbage", "outcome", 50_001, 40_000, "it is said whose fault it is"),
    Known(6, "25 h", "outcome", 40_012, "ok", "there is no longest delay here, unless it is set"),
    Known(6, "recall twice, late", "outcome", 50_001, "ok", "it was recalled, and that is still so", _JAVA),
    Known(6, "recall late", "outcome", 50_001, 40_000, "it is said that it was too late"),
    Known(8, "commit twice", "outcome", 50_001, "ok", "the same decision is no other one", _THREE),
    Known(
        9,
        "nothing",
        "waited_s",
        Between(6, 8),
        5,
        "this client does not say how long to wait: there it is guessed 1.5 s too long",
        _GO,
    ),
    Known(9, "change after ack", "outcome", "ok", 40_013, "what is acked has no lease to change", _THREE),
    Known(
        9,
        "again after 0",
        "waited_s",
        Between(1, 15),
        0,
        "a poll that waits is woken here when a message is given back",
        _BOTH,
    ),
    Known(
        9,
        "ack with the handle before",
        "left",
        1,
        0,
        "there it is answered with OK, and the message comes again; here it is acked",
        _BOTH,
    ),
    Known(10, "fails: waits", "waits_s", Between(1, 25), Between(1, 12), _LATER, LANGUAGES - _NODE),
    Known(
        10,
        "fails: waits",
        "waits_s",
        Between(1, 25),
        Between(1, 8),
        "up to 20 s later there; this client asks for no wait at all, and gets the shortest here",
        _NODE,
    ),
    Known(10, "raises: waits", "waits_s", Between(1, 25), Between(1, 8), _LATER),
    Known(
        10, "dead letter", "attempt", Between(4, 6), 1, "here a dead letter is a message of its own", _JAVA
    ),
    Known(12, "no SQL", "outcome", 50_001, 40_010, _PLACE),
    *(Known(12, name, "outcome", 50_001, 40_010, _PLACE, _BOTH) for name in _SQL),
    *(Known(12, name, "outcome", 50_001, 40_010, _PLACE, _JAVA) for name in _SQL_OF_JAVA),
    Known(
        13,
        "again",
        "bodies",
        [],
        ["unfinished"],
        "left to its lease there; here it comes again at once",
        _PYTHON,
    ),
    Known(
        13,
        "again at a simple consumer",
        "waits_s",
        Between(9, 45),
        Between(9, 25),
        "when its lease is over here; there when it is noticed",
        _THREE,
    ),
    Known(14, "receive of 1", "codes", [50_001], [40_401], _UNSAID, _RAW),
    Known(14, "receive of 0", "codes", [50_001], [40_000], _UNSAID, _RAW),
    Known(14, "received", "count", 0, 1, f"{_UNSAID}; and the same id twice is one message", _RAW),
    Known(14, "ack", "outcome", 50_001, 20_000, _UNSAID, _RAW),
    Known(14, "ack of nothing", "outcome", 50_001, 40_000, "it is said whose fault it is", _RAW),
    *(
        Known(14, f"{what} of garbage", "outcome", 50_001, 40_013, "it is said whose fault it is", _RAW)
        for what in ("ack", "change", "forward")
    ),
    Known(
        16,
        "sent",
        "outcome",
        OneOf(("error", "TypeError", "IllegalArgumentException")),
        "ok",
        "there are priorities from RocketMQ 5.4 on: until then the client itself refuses",
        _THREE,
    ),
    Known(16, "received", "order", [], ["high", "middle", "low"], "as it was not sent there", _BOTH),
    Known(16, "received", "priorities", [], [9, 5, 1], "as it was not sent there", _NODE),
    Known(16, "received", "order", [], ["urgent"], "as it was not sent there", _JAVA),
    Known(16, "received", "priorities", [], [5], "as it was not sent there", _JAVA),
]


def known_of(language: str) -> list[Known]:
    """Those that its client observes."""
    return [one for one in KNOWN if language in one.of]
