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
        step=1,
        what="start with an unknown topic",
        field="outcome",
        theirs=OneOf(("error", "Error", "IllegalStateException")),
        ours="ok",
        reason=_MADE,
        of=_THREE,
    ),
    Known(
        step=2,
        what="received",
        field="properties",
        theirs={"name": "Wert", "ümlaut": "süß", "emoji": "\U0001f680", "dots": "a.b"},
        ours={"name": "Wert", "ümlaut": "süß", "emoji": "\U0001f680", "dots": "a.b", "empty": ""},
        reason="a property without a value is lost there",
        of=_BOTH,
    ),
    Known(
        step=2,
        what="key with a space",
        field="keys",
        theirs=OneOf((["one", "key"], ["two", "words"])),
        ours=OneOf((["one key"], ["two words"])),
        reason="keys are kept there with spaces between them; here a key is one",
        of=_THREE,
    ),
    Known(
        step=5,
        what="empty group",
        field="outcome",
        theirs=40_014,
        ours="ok",
        reason="an empty group is none, and there a topic of type FIFO takes no message without one",
        of=_GO,
    ),
    Known(
        step=5,
        what="group on a normal topic",
        field="outcome",
        theirs="IllegalArgumentException",
        ours="ok",
        reason=_TYPES,
        of=_JAVA,
    ),
    Known(
        step=5,
        what="no group on a fifo topic",
        field="outcome",
        theirs="IllegalArgumentException",
        ours="ok",
        reason=_TYPES,
        of=_JAVA,
    ),
    Known(
        step=6,
        what="on a normal topic",
        field="outcome",
        theirs="IllegalArgumentException",
        ours="ok",
        reason=_TYPES,
        of=_JAVA,
    ),
    Known(6, "recall garbage", "outcome", 50_001, 40_000, "it is said whose fault it is"),
    Known(6, "25 h", "outcome", 40_012, "ok", "there is no longest delay here, unless it is set"),
    Known(
        step=6,
        what="recall twice, late",
        field="outcome",
        theirs=50_001,
        ours="ok",
        reason="it was recalled, and that is still so",
        of=_JAVA,
    ),
    Known(6, "recall late", "outcome", 50_001, 40_000, "it is said that it was too late"),
    Known(
        step=8,
        what="commit twice",
        field="outcome",
        theirs=50_001,
        ours="ok",
        reason="the same decision is no other one",
        of=_THREE,
    ),
    Known(
        step=9,
        what="nothing",
        field="waited_s",
        theirs=Between(6, 8),
        ours=5,
        reason="this client does not say how long to wait: there it is guessed 1.5 s too long",
        of=_GO,
    ),
    Known(
        step=9,
        what="change after ack",
        field="outcome",
        theirs="ok",
        ours=40_013,
        reason="what is acked has no lease to change",
        of=_THREE,
    ),
    Known(
        step=9,
        what="again after 0",
        field="waited_s",
        theirs=Between(1, 15),
        ours=0,
        reason="a poll that waits is woken here when a message is given back",
        of=_BOTH,
    ),
    Known(
        step=9,
        what="ack with the handle before",
        field="left",
        theirs=1,
        ours=0,
        reason="there it is answered with OK, and the message comes again; here it is acked",
        of=_BOTH,
    ),
    Known(
        step=10,
        what="fails: waits",
        field="waits_s",
        theirs=Between(1, 25),
        ours=Between(1, 12),
        reason=_LATER,
        of=LANGUAGES - _NODE,
    ),
    Known(
        step=10,
        what="fails: waits",
        field="waits_s",
        theirs=Between(1, 25),
        ours=Between(1, 8),
        reason="up to 20 s later there; this client asks for no wait at all, and gets the shortest here",
        of=_NODE,
    ),
    Known(10, "raises: waits", "waits_s", Between(1, 25), Between(1, 8), _LATER),
    Known(
        step=10,
        what="dead letter",
        field="attempt",
        theirs=Between(4, 6),
        ours=1,
        reason="here a dead letter is a message of its own",
        of=_JAVA,
    ),
    Known(12, "no SQL", "outcome", 50_001, 40_010, _PLACE),
    *(
        Known(step=12, what=name, field="outcome", theirs=50_001, ours=40_010, reason=_PLACE, of=_BOTH)
        for name in _SQL
    ),
    *(
        Known(step=12, what=name, field="outcome", theirs=50_001, ours=40_010, reason=_PLACE, of=_JAVA)
        for name in _SQL_OF_JAVA
    ),
    Known(
        step=13,
        what="again",
        field="bodies",
        theirs=[],
        ours=["unfinished"],
        reason="left to its lease there; here it comes again at once",
        of=_PYTHON,
    ),
    Known(
        step=13,
        what="again at a simple consumer",
        field="waits_s",
        theirs=Between(9, 45),
        ours=Between(9, 25),
        reason="when its lease is over here; there when it is noticed",
        of=_THREE,
    ),
    Known(
        step=14, what="receive of 1", field="codes", theirs=[50_001], ours=[40_401], reason=_UNSAID, of=_RAW
    ),
    Known(
        step=14, what="receive of 0", field="codes", theirs=[50_001], ours=[40_000], reason=_UNSAID, of=_RAW
    ),
    Known(
        step=14,
        what="received",
        field="count",
        theirs=0,
        ours=1,
        reason=f"{_UNSAID}; and the same id twice is one message",
        of=_RAW,
    ),
    Known(step=14, what="ack", field="outcome", theirs=50_001, ours=20_000, reason=_UNSAID, of=_RAW),
    Known(
        step=14,
        what="ack of nothing",
        field="outcome",
        theirs=50_001,
        ours=40_000,
        reason="it is said whose fault it is",
        of=_RAW,
    ),
    *(
        Known(
            step=14,
            what=f"{what} of garbage",
            field="outcome",
            theirs=50_001,
            ours=40_013,
            reason="it is said whose fault it is",
            of=_RAW,
        )
        for what in ("ack", "change", "forward")
    ),
    Known(
        step=16,
        what="sent",
        field="outcome",
        theirs=OneOf(("error", "TypeError", "IllegalArgumentException")),
        ours="ok",
        reason="there are priorities from RocketMQ 5.4 on: until then the client itself refuses",
        of=_THREE,
    ),
    Known(
        step=16,
        what="received",
        field="order",
        theirs=[],
        ours=["high", "middle", "low"],
        reason="as it was not sent there",
        of=_BOTH,
    ),
    Known(
        step=16,
        what="received",
        field="priorities",
        theirs=[],
        ours=[9, 5, 1],
        reason="as it was not sent there",
        of=_NODE,
    ),
    Known(
        step=16,
        what="received",
        field="order",
        theirs=[],
        ours=["urgent"],
        reason="as it was not sent there",
        of=_JAVA,
    ),
    Known(
        step=16,
        what="received",
        field="priorities",
        theirs=[],
        ours=[5],
        reason="as it was not sent there",
        of=_JAVA,
    ),
]


def known_of(language: str) -> list[Known]:
    """Those that its client observes."""
    return [one for one in KNOWN if language in one.of]
