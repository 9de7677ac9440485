"""What becomes of a message by what was answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from tests.support.run.cases import table
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.outcome import JITTER, Kind, Outcome, Rules, outcome_of

NOW_S = 1_700_000_000.0
RULES = Rules(retry_delays_ms=[5_000, 300_000, 1_800_000], give_up_on=[400, 422])
DAY_MS = 24 * 3_600_000


def of(result: Result, rules: Rules = RULES, attempt: int = 1, chance: float = 0.0) -> Outcome:
    return outcome_of(result, rules, attempt, NOW_S, chance)


@table("status", [200, 201, 202, 204, 299])
def test_2xx_is_delivered(status: int) -> None:
    assert of(Answer(status)) == Outcome(Kind.DELIVERED, is_success=True)


@table(
    "result",
    [Answer(status) for status in (101, 301, 302, 304, 307, 308, 401, 403, 404, 409, 500, 501, 507, 600)]
    + [NoAnswer(reason, "") for reason in ("timeout", "dns", "refused", "tls", "connection", "protocol")],
)
def test_all_else_is_tried_again_and_then_dead(result: Result) -> None:
    delays = [of(result, attempt=attempt).delay_ms for attempt in (1, 2, 3)]
    assert delays == list(RULES.retry_delays_ms)
    assert {of(result, attempt=attempt).kind for attempt in (1, 2, 3)} == {Kind.RETRY}
    last = of(result, attempt=4)
    assert (last.kind, last.error) == (Kind.DEAD, result.text)
    assert not last.is_success


def test_the_jitter_only_makes_it_later() -> None:
    assert of(Answer(500), chance=0.999).delay_ms == round(5_000 * (1 + JITTER * 0.999))


def test_without_delays_there_is_one_attempt() -> None:
    assert of(Answer(500), Rules(retry_delays_ms=[])).kind is Kind.DEAD


@table("status", [400, 422])
def test_give_up_on(status: int) -> None:
    outcome = of(Answer(status, excerpt=b"no such order"))
    assert (outcome.kind, outcome.error) == (Kind.DEAD, f"HTTP {status} no such order")
    assert outcome.is_success  # it judged a message, and that is what an endpoint that works does


def test_gone() -> None:
    assert of(Answer(410)).kind is Kind.GONE
    assert of(Answer(410), Rules([5_000], is_task=True)).kind is Kind.DEAD


@table("status", [429, 502, 503, 504])
@table(
    ("said", "pause_ms", "delay_ms"),
    [
        (None, None, 5_000),
        ("2", 2_000, 5_000),
        ("120", 120_000, 120_000),
        ("999999999999999999999999", DAY_MS, DAY_MS),
        (formatdate(NOW_S + 60, usegmt=True), 60_000, 60_000),
        (formatdate(NOW_S - 60, usegmt=True), 0, 5_000),
        (formatdate(NOW_S + 10 * 86_400, usegmt=True), DAY_MS, DAY_MS),
        ("soon", None, 5_000),
        ("-5", None, 5_000),
        ("1.5", None, 5_000),
        ("\u0663", None, 5_000),
    ],
)
def test_a_busy_endpoint_is_left_alone(
    status: int, said: str | None, pause_ms: int | None, delay_ms: int
) -> None:
    headers = {} if said is None else {"retry-after": said}
    outcome = of(Answer(status, headers))
    assert (outcome.kind, outcome.pauses) == (Kind.RETRY, True)
    assert (outcome.pause_ms, outcome.delay_ms) == (pause_ms, delay_ms)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose local time is not UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize(
    "said",
    [
        time.asctime(time.gmtime(NOW_S + 60)),
        time.strftime("%a, %d %b %Y %H:%M:%S", time.gmtime(NOW_S + 60)),
        time.strftime("%a, %d %b %Y %H:%M:%S -0000", time.gmtime(NOW_S + 60)),
        time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(NOW_S + 60)),
        time.strftime("%a, %d %b %Y %H:%M:%S +0200", time.gmtime(NOW_S + 60 + 7_200)),
    ],
    ids=["asctime", "no zone", "an unknown zone", "RFC 850", "an offset"],
)
def test_a_date_without_a_zone_is_in_utc(said: str) -> None:
    assert of(Answer(503, {"retry-after": said})).pause_ms == 60_000


def test_parts_of_a_millisecond_are_rounded_up() -> None:
    until = formatdate(NOW_S + 60, usegmt=True)
    answer = Answer(503, {"retry-after": until})
    assert outcome_of(answer, Rules([5_000]), 1, NOW_S + 0.0004, 0).pause_ms == 60_000
    assert of(Answer(202, {"tickwheel-lease": "0.1ms"}), Rules([5_000], may_hold=True)).delay_ms == 1
    assert outcome_of(Answer(500), Rules([5_001]), 1, NOW_S, 0.25).delay_ms == 5_127


def test_a_busy_endpoint_has_no_more_attempts_than_others() -> None:
    outcome = of(Answer(503, {"retry-after": "60"}), attempt=4)
    assert (outcome.kind, outcome.pauses, outcome.pause_ms) == (Kind.DEAD, True, 60_000)


@table(
    ("said", "held_ms"),
    [("10m", 600_000), ("PT1H", 3_600_000), ("90d", DAY_MS), ("0", None), ("long", None), (None, None)],
)
def test_held(said: str | None, held_ms: int | None) -> None:
    answer = Answer(202, {} if said is None else {"tickwheel-lease": said})
    holds = Rules([5_000], may_hold=True)
    expected = Outcome(Kind.DELIVERED, is_success=True)
    assert of(answer, holds) == (
        expected if held_ms is None else Outcome(Kind.HELD, held_ms, is_success=True)
    )
    assert of(answer) == expected
    assert of(Answer(200, answer.headers), holds) == expected


def test_what_is_held_and_never_settled_is_dead_in_the_end() -> None:
    answer, holds = Answer(202, {"tickwheel-lease": "1ms"}), Rules([5_000, 5_000], may_hold=True)
    kinds = [of(answer, holds, attempt=attempt).kind for attempt in range(1, 5)]
    assert kinds == [Kind.HELD, Kind.HELD, Kind.HELD, Kind.DEAD]
    assert of(answer, holds, attempt=4).error == "HTTP 202: held again, and never settled"
    assert of(answer, holds, attempt=4).is_success


def test_what_a_dead_letter_says_cannot_steer_a_terminal() -> None:
    text = Answer(500, excerpt=b"\x1b[2J a\r\n\tb \xff" + b"x" * 2_000).text
    assert text.startswith("HTTP 500 [2J a b \N{REPLACEMENT CHARACTER}xxx")
    assert text.isprintable()
    assert len(text) < 1_100
    assert Answer(204).text == "HTTP 204"
    assert NoAnswer("dns", "x has no address").text == "dns: x has no address"
