"""Which client of RocketMQ can do what with the gateway: each cell comes from a run, and is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from tests.support.rocketmq.differences import Observed

RECORDED: Final = Path(__file__).parents[2] / "interop" / "rocketmq" / "features.json"

WORKS: Final = "works"
NONE: Final = "the client has none"
NOT_TRIED: Final = ""

Cells: TypeAlias = dict[str, str]
"""By feature."""


class Proof(NamedTuple):
    """What is observed where it works."""

    step: int
    what: str
    field: str
    value: Any


FEATURES: Final[dict[str, tuple[Proof, ...]]] = {
    "send, receive, ack; tag, keys, properties": (
        Proof(2, "received", "id", True),
        Proof(2, "received", "tag", "tag"),
        Proof(2, "ack", "outcome", "ok"),
    ),
    "messages with a time": (Proof(6, "which", "bodies", ["in time", "past"]),),
    "recall": (Proof(6, "recall", "outcome", "ok"),),
    "message groups, push consumer": (
        Proof(
            7,
            "order",
            "groups",
            {f"g{group}": [f"{number:02}" for number in range(group, 20, 3)] for group in range(3)},
        ),
    ),
    "transactions: commit, rollback, check-back": (
        Proof(8, "received", "bodies", ["checker commits", "commit"]),
    ),
    "retries of a push consumer, attempt numbers": (Proof(10, "fails", "attempts", [1, 2, 3]),),
    "filter by tag": (Proof(12, "a or b", "bodies", ["0", "1"]), Proof(12, "a", "bodies", ["0"])),
    "filter by SQL": (Proof(12, "number", "bodies", ["2"]), Proof(12, "in", "bodies", ["0", "2", "3"])),
    "`%DLQ%`": (Proof(10, "dead letter", "same_id", True),),
    "compressed bodies": (Proof(15, "received", "bodies", ["just not", "noise", "text"]),),
    "priority": (Proof(16, "sent", "outcome", "ok"),),
}
STEPS: Final = sorted({proof.step for proofs in FEATURES.values() for proof in proofs})


def cells(seen: Observed) -> Cells:
    """What a run has shown. Raises `AssertionError` where something does not work that the client has."""
    found = {}
    values = {
        (name[0], name[1], field): value for name, fields in seen.items() for field, value in fields.items()
    }
    for feature, proofs in FEATURES.items():
        there = [(proof, values.get((proof.step, proof.what, proof.field))) for proof in proofs]
        if any(value == "absent" for _, value in there):
            found[feature] = NONE
        elif all((proof.step, proof.what) not in {name[:2] for name in seen} for proof in proofs):
            found[feature] = NOT_TRIED
        else:
            for proof, value in there:
                assert value == proof.value, f"{feature}: {proof}, and {value} was observed"
            found[feature] = WORKS
    return found


def recorded() -> dict[str, Cells]:
    """By client and its version."""
    all_cells: dict[str, Cells] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return all_cells


def record(client: str, found: Cells) -> None:
    """Write down what it can do, beside what others can."""
    everything = {**recorded(), client: found}
    RECORDED.write_text(json.dumps(dict(sorted(everything.items())), indent=2) + "\n")


def table(clients: dict[str, Cells]) -> str:
    """For the documentation."""
    features = list(dict.fromkeys(feature for found in clients.values() for feature in found))
    rows = [
        ["", *clients],
        ["---"] * (len(clients) + 1),
        *([feature, *(found.get(feature, NOT_TRIED) for found in clients.values())] for feature in features),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(table(recorded()), end="")
