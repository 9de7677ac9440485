"""Recurring schedules over HTTP, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon

MORNING = {"topic": "chat", "cron": "0 9 * * MON-FRI", "tz": "Europe/Paris", "body": {"call": "stand-up"}}


async def test_a_schedule_from_its_creation_to_its_end(ask: Caller) -> None:
    one = "/v1/schedules/standup"
    assert (await ask("GET", one)).code == "unknown_schedule"
    made = await ask("PUT", one, {**MORNING, "priority": 3, "window": "10m", "headers": {"x": 1}})
    assert made.status == 201
    assert (made.json["name"], made.json["cron"], made.json["every"]) == ("standup", MORNING["cron"], None)
    assert (made.json["priority"], made.json["window"], made.json["paused"]) == (3, "10m", False)
    assert (made.json["body"], made.json["until"]) == ({"call": "stand-up"}, None)
    assert made.json["headers"] == {"x": 1, "content-type": "application/json"}
    again = await ask("PUT", one, {**MORNING, "priority": 3, "window": "10m", "headers": {"x": 1}})
    assert (again.status, again.json) == (200, made.json)

    paused = await ask("POST", f"{one}/pause")
    assert (paused.json["paused"], paused.json["next"]) == (True, [])
    replaced = await ask("PUT", one, {"topic": "chat", "every": "PT1H", "until": "2100-01-01T00:00:00Z"})
    assert replaced.status == 200
    assert (replaced.json["cron"], replaced.json["every"], replaced.json["base64"]) == (None, "1h", "")
    assert (replaced.json["until"], replaced.json["headers"]) == ("2100-01-01T00:00:00Z", {})
    assert (replaced.json["priority"], replaced.json["window"], replaced.json["tz"]) == (None, None, "UTC")
    assert replaced.json["paused"] is True
    resumed = await ask("POST", f"{one}/resume")
    assert len(resumed.json["next"]) == 5
    times = (await ask("GET", f"{one}/next?count=3")).json["items"]
    assert times == resumed.json["next"][:3]

    ended = await ask("DELETE", one)
    assert (ended.status, ended.json) == (200, {"name": "standup"})
    assert (await ask("DELETE", one)).code == "unknown_schedule"


async def test_a_trigger_with_a_key_sends_once(ask: Caller) -> None:
    await ask("PUT", "/v1/schedules/now", {"topic": "bells", "every": "1d", "text": "ring"})
    trigger = "/v1/schedules/now/trigger"
    first = await ask("POST", trigger, headers={"Idempotency-Key": '"today"'})
    again = await ask("POST", trigger, headers={"Idempotency-Key": "today"})
    other = await ask("POST", trigger)
    assert first.json == again.json != other.json
    sent = (await ask("GET", f"/v1/messages/{first.json['id']}")).json
    assert (sent["topic"], sent["text"]) == ("bells", "ring")


async def test_the_list_comes_in_parts(ask: Caller) -> None:
    for number in range(3):
        await ask("PUT", f"/v1/schedules/list-{number}", {"topic": "chat", "every": "1d"})
    first = (await ask("GET", "/v1/schedules?limit=2")).json
    assert [row["name"] for row in first["items"]] == ["list-0", "list-1"]
    rest = (await ask("GET", f"/v1/schedules?after={first['next']}")).json
    assert "list-2" in [row["name"] for row in rest["items"]]


@pytest.mark.parametrize(
    ("rhythm", "times", "skipped"),
    [
        (
            {"cron": "30 2 * * *", "from": "2026-03-28T00:00:00Z", "count": 3},
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
            ["2026-03-29T02:30:00"],
        ),
        (
            {"cron": "*/30 2 * * *", "from": "2026-10-24T23:00:00Z", "count": 5},
            [
                ("2026-10-25T02:00:00+02:00", "first"),
                ("2026-10-25T02:30:00+02:00", "first"),
                ("2026-10-25T02:00:00+01:00", "second"),
                ("2026-10-25T02:30:00+01:00", "second"),
                "2026-10-26T02:00:00+01:00",
            ],
            [],
        ),
        (
            {"every": "1h", "start": "2026-01-01T00:00:00Z", "from": "2026-06-01T00:10:00Z", "count": 1},
            ["2026-06-01T03:00:00+02:00"],
            [],
        ),
        ({"cron": "0 0 1 1 *", "until": "2030-01-01T00:00:00Z", "from": "2031-01-01T00:00:00Z"}, [], []),
    ],
)
async def test_a_preview_says_what_clocks_make_of_it(
    ask: Caller, rhythm: dict[str, Any], times: list[Any], skipped: list[str]
) -> None:
    found = await ask("POST", "/v1/schedules/preview", {"tz": "Europe/Paris", **rhythm})
    assert found.status == 200
    expected = [one if isinstance(one, tuple) else (one, None) for one in times]
    assert [(one["at"], one["repeated"]) for one in found.json["items"]] == expected
    assert found.json["skipped"] == skipped
    assert "preview" not in [one["name"] for one in (await ask("GET", "/v1/schedules")).json["items"]]


@pytest.mark.parametrize("rhythm", [{"cron": "0 0 1 1 *"}, {"every": "1h"}])
async def test_a_preview_at_the_end_of_time(ask: Caller, rhythm: dict[str, Any]) -> None:
    for tz in ("UTC", "America/New_York", "Asia/Kolkata"):
        wanted = {**rhythm, "tz": tz, "from": "9999-12-31T22:30:00Z"}
        found = await ask("POST", "/v1/schedules/preview", wanted)
        assert [one["at"] for one in found.json["items"]] in (
            [],
            ["9999-12-31T23:30:00Z"],
            ["9999-12-31T18:30:00-05:00"],
        )


async def test_the_next_times_from_a_moment_on(ask: Caller) -> None:
    await ask("PUT", "/v1/schedules/from", MORNING)
    found = await ask("GET", "/v1/schedules/from/next?count=2&from=2031-05-03T00:00:00Z")
    assert found.json["items"] == ["2031-05-05T07:00:00Z", "2031-05-06T07:00:00Z"]


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "code"),
    [
        ("PUT", "bad", {"topic": "chat"}, 400, "bad_schedule"),
        ("PUT", "bad", {**MORNING, "every": "1h"}, 400, "bad_schedule"),
        ("PUT", "bad", {**MORNING, "cron": "61 * * * *"}, 400, "bad_schedule"),
        ("PUT", "bad", {**MORNING, "tz": "Europe/Atlantis"}, 400, "bad_schedule"),
        ("PUT", "bad", {**MORNING, "window": "soon"}, 400, "bad_time"),
        ("PUT", "bad", {**MORNING, "text": "x"}, 400, "bad_argument"),
        ("PUT", "bad", {**MORNING, "until": "2100-01-01T00:00:00"}, 400, "naive_datetime"),
        ("PUT", "bad", {**MORNING, "overlap": "never"}, 400, "bad_argument"),
        ("PUT", "bad", {**MORNING, "crom": "x"}, 400, "unknown_field"),
        ("PUT", "bad", {**MORNING, "topic": "-"}, 400, "bad_topic_name"),
        ("PUT", "-bad", MORNING, 400, "bad_topic_name"),
        ("PUT", "bad", None, 415, "unsupported_media_type"),
        ("GET", "none", None, 404, "unknown_schedule"),
        ("GET", "none/next", None, 404, "unknown_schedule"),
        ("GET", "none/next?from=soon", None, 400, "bad_argument"),
        ("POST", "preview", {"cron": "61 * * * *"}, 400, "bad_schedule"),
        ("POST", "preview", {"tz": "Europe/Atlantis", "every": "1h"}, 400, "bad_schedule"),
        ("POST", "preview", {}, 400, "bad_schedule"),
        ("POST", "preview", {"every": "1h", "count": 1001}, 400, "bad_argument"),
        ("GET", "none/next?count=0", None, 400, "bad_argument"),
        ("POST", "none/pause", None, 404, "unknown_schedule"),
        ("POST", "none/resume", None, 404, "unknown_schedule"),
        ("POST", "none/trigger", None, 404, "unknown_schedule"),
        ("DELETE", "none", None, 404, "unknown_schedule"),
    ],
)
async def test_what_is_refused(
    ask: Caller, method: str, path: str, json: Any, status: int, code: str
) -> None:
    answer = await ask(method, f"/v1/schedules/{path}", json)
    assert (answer.status, answer.code) == (status, code)


async def test_a_key_of_a_trigger_that_is_too_long(ask: Caller) -> None:
    await ask("PUT", "/v1/schedules/long", {"topic": "bells", "every": "1d"})
    for key in ("k" * 65, '""'):
        answer = await ask("POST", "/v1/schedules/long/trigger", headers={"Idempotency-Key": key})
        assert (answer.status, answer.code) == (400, "bad_argument")


def test_the_command_line_says_the_same(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    paris = ("schedules", "preview", "--tz", "Europe/Paris", "--count", "3")
    spring = shell.text(*paris, "--cron", "30 2 * * *", "--after", "2026-03-28T00:00Z")
    assert spring.splitlines() == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-29T02:30:00 does not exist: clocks are put forward",
    ]
    autumn = shell.text(*paris, "--cron", "*/30 2 * * *", "--after", "2026-10-24T23:00Z")
    assert autumn.splitlines()[2] == "2026-10-25T02:00:00+01:00  second of two"
    assert shell.run(*paris, code=2).returncode == 2
    shell.run("schedules", "create", "cli", "--cron", "0 9 * * *", "--topic", "chat")
    assert shell.text("schedules", "next", "cli", "--count", "1", "--after", "2031-05-01T10:00Z").split() == [
        "2031-05-02T09:00:00+00:00"
    ]
