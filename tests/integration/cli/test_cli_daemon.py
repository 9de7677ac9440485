"""Each command against a real daemon, once as it is meant and once with a wrong input."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cli_harness import PATIENCE_S, Serve, Shell

FAR = "2031-05-01T09:00+02:00"
FAR_MS = 1_935_385_200_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One daemon for all tests of this file: each uses topics of its own."""
    with Serve(tmp_path_factory.mktemp("daemon")) as serve:
        yield serve
        assert serve.stop() == 0


@pytest.fixture
def shell(serving: Serve, tmp_path: Path) -> Shell:
    return Shell(tmp_path, next(url for url in serving.urls if url.startswith("tickwheel://")))


@pytest.mark.promise("V46", "V101", "R25", "R26")
def test_send_and_receive_in_the_order_of_their_times(shell: Shell) -> None:
    later = shell.json("send", "tea", "ready", "--in", "3s", "--key", "pot-1")
    assert later == {"topic": "tea", "id": later["id"], "duplicate": False, "differs": False}
    assert shell.json("send", "tea", "ready", "--key", "pot-1") == {**later, "duplicate": True}
    assert int(shell.text("send", "tea", "boil it")) == later["id"] + 1
    lines = shell.text("receive", "tea", "--count", "2", "--timeout", "10s").splitlines()
    assert lines[0].endswith(f"Z  {later['id'] + 1}  boil it")
    assert lines[1].endswith(f"Z  {later['id']}  [pot-1]  ready")


@pytest.mark.promise("V85")
def test_receive_as_json_tells_everything(shell: Shell) -> None:
    shell.run("send", "full", "-", "--header", "a=b=c", "--priority", "7", "--key", "k", stdin="é".encode())
    (shell.directory / "raw").write_bytes(b"\xff\x00")
    shell.run("send", "full", "--file", "raw")
    output = shell.text("receive", "full", "--count", "2", "--group", "g", "--json")
    first, second = map(json.loads, output.splitlines())
    assert first["body"] == "é"
    assert (first["headers"], first["priority"], first["key"], first["epoch"]) == ({"a": "b=c"}, 7, "k", 1)
    assert (first["topic"], first["group"]) == ("full", "g")
    assert base64.b64decode(second["body_base64"]) == b"\xff\x00"


def test_raw_bodies_are_not_touched(shell: Shell) -> None:
    body = bytes(range(256))
    shell.run("send", "raw", "-", stdin=body)
    assert shell.run("receive", "raw", "--count", "1", "--raw").stdout == body + b"\n"


def test_without_ack_a_message_stays(shell: Shell) -> None:
    shell.run("send", "look", "here")
    for _ in range(2):
        assert shell.text("receive", "look", "--count", "1", "--no-ack").count("here") == 1
    shell.run("receive", "look", "--count", "1")
    error = shell.error("receive", "look", "--count", "1", "--timeout", "300ms", code=3)
    assert error["code"] == "timed_out"


def test_a_timeout_without_count_is_an_ordinary_end(shell: Shell) -> None:
    assert shell.text("receive", "nothing", "--timeout", "200ms") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_receive_cleanly(shell: Shell, number: signal.Signals) -> None:
    topic = f"follow.{number.name}"
    process = shell.popen("receive", topic)
    shell.run("send", topic, "one")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"one\n")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, b"")
    [topic_stats] = [one for one in shell.json("topics") if one["name"] == topic]
    assert topic_stats["groups"][0]["acked"] == 1


@pytest.mark.promise("V54")
def test_bulk(shell: Shell) -> None:
    lines = [
        {"body": "1", "key": "a"},
        {"body": "2", "in": "1h"},
        {"body_base64": "AP8=", "topic": "bulk.other", "at": FAR, "headers": {"h": "v"}, "priority": 1},
        {"body": "1 again", "key": "a"},
    ]
    (shell.directory / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    report = shell.json("send", "bulk", "--from-file", "x.jsonl")
    assert (report["sent"], report["duplicates"], report["problems"]) == (3, 1, [])
    topics = {topic["name"]: topic for topic in shell.json("topics")}
    assert (topics["bulk"]["messages"], topics["bulk"]["scheduled"]) == (2, 1)
    assert topics["bulk.other"]["scheduled"] == 1


def test_bulk_with_bad_lines_sends_nothing_unless_told_to(shell: Shell) -> None:
    lines = b'{"body": "good"}\nnot json\n{"body": "x", "in": "5"}\n'
    refused = shell.run("send", "half", "--from-file", "-", stdin=lines, code=1)
    assert [line.split(":")[0] for line in refused.stderr.decode().splitlines()] == ["line 2", "line 3"]
    assert refused.stdout == b"nothing was sent: 2 bad lines\n"
    assert "half" not in {topic["name"] for topic in shell.json("topics")}
    sent = shell.run("send", "half", "--from-file", "-", "--skip-bad", "--json", stdin=lines, code=1)
    report = json.loads(sent.stdout)
    assert report["sent"] == 1
    assert [problem["line"] for problem in report["problems"]] == [2, 3]


@pytest.mark.promise("R71")
def test_a_message_that_the_broker_refuses_is_a_problem_of_its_line(shell: Shell) -> None:
    lines = [{"body": "good"}, {"body": "x" * (5 << 20)}, {"body": "good"}]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    sent = shell.run("send", "large", "--from-file", "-", "--json", stdin=stdin, code=1)
    report = json.loads(sent.stdout)
    assert report["sent"] == 2
    assert [problem["line"] for problem in report["problems"]] == [2]
    assert "body_too_large" in report["problems"][0]["reason"]
    assert shell.error("send", "large", "-", stdin=b"x" * (5 << 20), code=1)["code"] == "body_too_large"


def test_cancel_and_reschedule_by_id_and_by_key(shell: Shell) -> None:
    first = shell.json("send", "plans", "a", "--in", "1h")["id"]
    shell.run("send", "plans", "b", "--at", FAR, "--key", "b")
    assert shell.text("reschedule", "plans", "--key", "b", "--in", "2h") == "b: rescheduled\n"
    assert shell.text("reschedule", str(first), "--in", "0s") == f"{first}: rescheduled\n"
    assert f"  {first}  a" in shell.text("receive", "plans", "--count", "1", "--timeout", "10s")
    assert shell.text("cancel", "--topic", "plans", "--key", "b") == "b: cancelled\n"
    failed = shell.run("cancel", str(first), "999999999", "--json", code=1)
    assert json.loads(failed.stdout) == [
        {"id": first, "result": "already_acked"},
        {"id": 999999999, "result": "not_found"},
    ]
    assert shell.run("reschedule", "plans", "--key", "c", "--in", "1s", code=1).stdout == b"c: not found\n"


def test_topics_stats_and_wheel(shell: Shell) -> None:
    shell.run("send", "shown", "x", "--at", FAR)
    assert "shown " in shell.text("topics")
    assert shell.json("stats")["scheduled"] >= 1
    assert "scheduled" in shell.text("stats")
    picture = shell.text("wheel")
    assert "next minute" in picture
    assert "8,919.4 years" in picture
    wheel = shell.json("wheel")
    assert [level["slot_ms"] for level in wheel["levels"]] == [1, 4096, 4096**2, 4096**3]
    assert wheel["forecast"][-1]["timers"] >= 1


def test_watching_the_wheel_ends_with_ctrl_c(shell: Shell) -> None:
    process = shell.popen("wheel", "--watch", "--every", "50ms", "--json")
    assert process.stdout is not None
    pictures = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, b"")
    assert pictures[0]["now_ms"] < pictures[1]["now_ms"]


@pytest.mark.parametrize(
    "arguments",
    [("send", "no spaces", "x"), ("receive", "-x-"), ("send", "x", "y", "--key", "k" * 256)],
)
def test_names_and_keys_that_the_protocol_does_not_allow(shell: Shell, arguments: tuple[str, ...]) -> None:
    error = shell.error(
        *arguments[:1], *arguments[3:], "--", *arguments[1:3], code=1 if "--key" in arguments else 2
    )
    assert error["code"] in ("bad_topic_name", "key_too_long")
    assert error["advice"]


def test_the_unix_socket_works_too(serving: Serve, tmp_path: Path) -> None:
    url = next(url for url in serving.urls if url.startswith("tickwheel+unix://"))
    shell = Shell(tmp_path)
    assert shell.json("--url", url, "send", "unix", "x")["duplicate"] is False
    assert "not the address" in shell.error("topics", "--url", "http://127.0.0.1", code=78)["message"]
