"""Every example runs as written and says what it promises."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.clients import forking
from tests.support.outbox.databases import OUTBOX
from tests.support.run.profile import DRAWS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SAYS = {
    "arrow_tables.py": ["2031-05-01: 1000", "2031-05-02: 1000"],
    "celery_app.py": [
        "2 + 3 = 5",
        "order 17 is not paid",
        "held by workers: 0",
        "waiting at the broker: 1",
    ],
    "endpoints.py": [
        "the broker made a secret: True",
        "there is one already",
        "The HTTP tasks of 'http-tasks' may not be for https://elsewhere.example/.",
        'shop is to be sent {"order": 17} at https://shop.example/hooks',
        "tasks is to be sent 7 at https://eu.shop.example/jobs/remind",
        "not done with: 1",
    ],
    "django_outbox_tasks.py": [
        "the reminder of the one that is paid: cancelled",
        "2 sent.",
        "the reminder of the other one, now: rescheduled",
        "Runs tasks of letters: processes 1, threads of each queue 1.",
        "Please pay order 2.",
        "Thanks for order 1.",
    ],
    "webhook_receiver.py": ["order 17: not now", "order 17: taken, attempt 2", "forged: refused"],
    "testing_applications.py": [
        "14 days, 0:00:00 {'name': 'ada', 'what': 'remind'} 503",
        "14 days, 0:00:05 {'name': 'ada', 'what': 'remind'} 204",
        "28 days, 0:00:00 {'name': 'ada', 'what': 'end'} 204",
        "['ada: remind', 'ada: end']",
    ],
    "groups.py": [
        "made: True",
        "read: ['17, delivery 1', '18, delivery 1', '19, delivery 1']",
        "biling: 3 to do, 0 subscribers",
        "billing: 0 to do, 0 subscribers",
        "deleted, with a backlog of 3",
        "again: 3",
        "read: ['17, delivery 2', '18, delivery 2', '19, delivery 2']",
        "order 18: ['billing acked']",
    ],
    "query.py": [
        "acked: 2",
        "scheduled: 2, the next one later today or tomorrow",
        "waits longest: carol, 30 euros",
    ],
    "purge.py": [
        "purged within the hour: 0",
        "would be purged: 10000, would be moved: 1",
        "purged: 10000, space of the log is free again: True",
        "still there: happy new year",
    ],
    "outbox_keys.py": [
        "order 19: the card was declined, so nothing of it is there",
        "in the outboxes: 2 messages, 6 operations",
        "the printer is on fire, 2 letters stay in the inbox",
        "mailed: thanks for order 17, thanks for order 18",
        "orders/berlin/: 2 keys, 8 bytes",
        "set aside: Increment(key=b'turnover', by=30) (not_an_integer)",
        "set aside: Increment(key=b'turnover', by=12) (not_an_integer)",
        "retried: 2",
        "turnover: 42",
        "keys: ['orders/berlin/17', 'orders/berlin/18']",
    ],
    "outbox_messages.py": [
        "order 18: the card was declined, so there is no message either",
        "letter: thanks for order 17 (delivery 1)",
        "a second time: refused, nothing was written",
        "14 days earlier: how was order 17?",
        "acked: 2, waiting: 0",
    ],
    "outbox_relay.py": [
        "order 18: the card was declined, so there is no message either",
        "moved to the broker: 2",
        "moved again: 0",
        "relay_messages:1: ship order 17 (ready)",
        "relay_messages:2: how was order 17? (scheduled)",
        "first delivery, a parcel is made: True",
        "delivered again, a parcel is made: False",
        "parcels: ship order 17, ship order 19",
    ],
    "reminders.py": ["bed: cancelled", "dentist: call the dentist", "tea: take the tea out"],
    "bulk.py": ["received 100,000 of 100,000"],
    "order_timeout.py": [
        "order-1 paid, timeout cancelled",
        "order-2 was not paid: cancelled",
        "order-2 paid too late, timeout already_acked",
    ],
    "retries_and_dead_letters.py": [
        "attempt 1: nacked",
        "attempt 2: nacked",
        "attempt 3: dead",
        "dead after 3 attempts, last error: connection refused (3)",
        "replay: {'replayed': 1}",
        "delivered: to: ada@example.org",
    ],
    "outbox_queue.py": [
        "order 4 cannot be paid: nothing is in the queue for it",
        "ready: 3",
        "leased to a program that dies: invoice for order 1",
        "written at attempt 1: invoice for order 2",
        "written at attempt 1: invoice for order 3",
        "written at attempt 2: invoice for order 1",
        "the dead one comes back too late: 1 of the messages are not held any more: 1.",
        "invoices: 3",
    ],
    "tokens.py": ["sent: 1", "may not publish 'mails'.", "The token was revoked."],
    "tracing.py": [
        "send reminders: a child of order 17",
        "process reminders: linked to send reminders",
        "a trace of its own: True",
        "the delay lies between them: True",
    ],
    "watching.py": [
        "alive: ok",
        "ready: True",
        "tickwheel_messages_accepted_total: 100",
        "tickwheel_messages_acked_total: 60",
        "tickwheel_backlog_messages: 40",
        "tickwheel_connections: 1",
        "late messages counted: 100",
    ],
    "http_api.py": [
        "sent: 201",
        "sent again: 200, duplicate: True",
        "it is: scheduled",
        "cancel: cancelled",
        "naive: 400, naive_datetime",
    ],
    "fastapi_reminders.py": [
        "bed: cancelled 404",
        "dentist: rescheduled",
        "naive: 422",
        "said: it is time: tea, it is time: dentist",
        "forged: 401",
    ],
    "priorities.py": ["first: alarm", "reports among the first 16: 2"],
    "history.py": [
        "sent",
        "due",
        "delivered billing",
        "nacked billing card refused",
        "delivered billing",
        "acked billing",
        "complete: True",
    ],
    "celery_schedules.py": [
        "reschedule: rescheduled",
        "revoke: cancelled",
        "revoke again: unknown",
        "waits: shop.remind ('order 17',) until 2032-01-01",
        "the broker sends a report at: 30 6 * * * Europe/Paris",
        "the broker polls every: 0:00:10",
    ],
    "consumers.py": [
        "to ada: sent in attempt 1",
        "to bob: the server is busy",
        "to bob: sent in attempt 2",
        "dead: to nobody",
    ],
    "dramatiq_tasks.py": [
        "waiting: 1",
        "taken back: cancelled",
        "order 17: the mail server is busy",
        "order 17: thanks",
        "dead: charge('1234')",
    ],
    "taskiq_tasks.py": [
        "scheduled: [['renew']]",
        "bed: cancelled",
        "done: tea",
        "done: report report",
        "scheduled: []",
    ],
    "fastapi_tasks.py": [
        "begin: in 14 days",
        "begin: in 14 days",
        "begin: in 14 days",
        "ada stays: never",
        "carol: 404",
        "ended: ['bob']",
        "bob, too late: 409",
    ],
    "fetching.py": ["fetched: to ada, to bob", "sent: acked", "not sent: nacked", "again: to bob"],
    "ordering.py": ["ada: created, paid, shipped", "bob: created, paid, shipped"],
    "transactions.py": [
        "invoices: 1",
        "refused: send 0 (key 'invoice-17'): message 0 of a send cannot be stored: duplicate (it is message 2)",
        "reminders still planned: 1",
        "shipped: order 17",
    ],
    "recurring_schedules.py": ["between beats: [250, 250]", "stand-up at 09:00 on a working day: True"],
    "topic_settings.py": [
        "priority 50, attempt 1",
        "priority 50, attempt 2",
        "while it is paused: None",
        "afterwards: 18",
        "refused: bad_topic_settings",
        "what is set: ack_wait_ms max_attempts",
        "from Vitess: 30000 ms, 10000 messages",
    ],
    "order_timeouts_spark.py": [
        "scheduled 5, cancelled 2, paid first 3",
        "after the second batch was done again: scheduled 5, cancelled 2, paid first 3",
        "timed out: order-4, order-5, order-6",
        "order-4 is paid too late: 1",
    ],
    "spark_archive.py": [
        "archived: 30 in 3 files, 30 dropped",
        "read with Spark alone: 10",
        "the first of May: 10 to orders.restored",
        "rescheduled: 1000 of 1000",
    ],
    "spark_messages.py": [
        "50 acked, 50 leased, 900 scheduled",
        "acked and due by now: 50",
        "delivered early: 0",
    ],
    "spark_schedule.py": [
        "refused: {'no_time': 1}",
        "scheduled 99998; left out: {'no_time': 1, 'key_twice': 1}",
        "repeated: True",
        "cancel: cancelled",
    ],
    "sharded_consumers.py": ["shards: -80 80-", "every key once: True"],
}


#: What they show is tested elsewhere, and each starts Spark, or a worker of Celery.
SLOW = {
    "arrow_tables.py": pytest.mark.ci,
    "celery_app.py": pytest.mark.ci,
    "order_timeouts_spark.py": pytest.mark.ci,
    "spark_archive.py": pytest.mark.soak,
    "spark_messages.py": pytest.mark.soak,
    "spark_schedule.py": pytest.mark.soak,
}
YEAR = "flights_year.py"
#: What all of them import is imported once; in a longer run than `ci` each is started as its first line says.
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAYS, YEAR}


def lines_of(name: str, *options: str, timeout_s: int) -> list[str]:
    """What a program prints; it says nothing on its standard error but what Java warns of."""
    words = [str(EXAMPLES / name), *options]
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        process: subprocess.Popen[bytes] | forking.Forked
        if not DRAWS:
            files = (0, printed.fileno(), said.fileno())
            process = forking.start(RUN, *words, modules=("tickwheel_broker.daemon", *OUTBOX), files=files)
        else:
            process = subprocess.Popen([sys.executable, *words], stdout=printed, stderr=said)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        printed.seek(0)
        said.seek(0)
        assert (code, [line for line in said if not line.startswith("WARNING: ")]) == (0, [])
        return printed.read().splitlines()


@pytest.mark.promise("R10", "S4")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in sorted(SAYS)])
def test_example(name: str) -> None:
    assert lines_of(name, timeout_s=240) == SAYS[name]


def counts_of_a_year(lines: list[str]) -> dict[str, str]:
    """The counts it prints, without the times that steps took."""
    return dict(line.strip().split(": ") for line in lines if line.startswith("  ") and ": " in line)


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_days_of_the_year_of_departures() -> None:
    lines = lines_of(YEAR, "--days", "1", "--seconds", "2", timeout_s=290)
    counts = counts_of_a_year(lines)
    assert [
        counts[name] for name in ("scheduled", "acked", "reported", "archived", "dropped by the broker")
    ] == ["842"] * 5
    assert lines[-1].startswith("842 departures scheduled, delivered, reported on and archived; ")


@pytest.mark.soak
def test_the_year_of_departures() -> None:
    lines = lines_of(YEAR, timeout_s=1_800)
    assert counts_of_a_year(lines)["archived"] == "336,776"
