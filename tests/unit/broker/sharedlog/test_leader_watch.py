"""When a reader that hears nothing takes another machine for the leader."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tickwheel_broker.sharedlog.kafka import leader
from tickwheel_broker.sharedlog.kafka.leader import Epochs, LeaderWatch

QUIET_S = 2.0


def watch() -> LeaderWatch:
    return LeaderWatch(servers="one:9092,two:9092", topic="t", partition=0, options=None, quiet_s=QUIET_S)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([{}], [None]),
        ([{"one": 4, "two": 4}], [None]),
        ([{"one": 4, "two": 5}], ["two"]),  # where it began it does not know
        ([{"one": 4}, {"one": 4, "two": 5}, {"one": 4, "two": 5}], [None, "two", None]),
        ([{"one": 4}, {}, {"one": 5}], [None, None, "one"]),
        ([{"one": 4, "two": 5}, {"one": 4}, {"one": 4, "two": 5}, {"one": 6}], ["two", None, None, "one"]),
    ],
)
def test_a_higher_epoch_leads(answers: list[Epochs], found: list[str | None]) -> None:
    one = watch()
    assert [one.judge(epochs) for epochs in answers] == found


def test_it_asks_all_that_are_known_after_each_quiet_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(leader.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(leader, "_brokers", lambda consumer, topic: ["two:9092", "three:9092"])
    one, asked = watch(), list[tuple[float, list[str]]]()

    def ask(servers: set[str], is_enough: object) -> Epochs:
        asked.append((now_s[0], sorted(servers)))
        return {"three:9092": len(asked)}

    monkeypatch.setattr(one, "_ask", ask)
    everywhere = ["one:9092", "three:9092", "two:9092"]
    found = []
    for _ in range(50):
        now_s[0] += 0.125
        if now_s[0] == 103.0:
            one.found()
        found.append(one.step(cast(Any, None), lambda: False))
    assert asked == [(102.0, everywhere), (105.0, everywhere)]
    assert [server for server in found if server] == ["three:9092"]
