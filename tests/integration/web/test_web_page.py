"""The commands and the program on the page about HTTP, run as they are written."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from textwrap import indent
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.integration.documents.test_how_to import RECEIPT, ROOT, blocks
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import started

PAGE = ROOT / "docs" / "how-to" / "http.md"
DASHBOARD = ROOT / "docs" / "how-to" / "dashboard.md"


def curl(words: list[str], port: int) -> tuple[int, Any]:
    """What curl would do with these words, at another port."""
    method, body, headers, url = "", None, {}, ""
    rest = iter(words)
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-d":
            body = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        else:
            url = word
    parts = urlsplit(url)
    assert parts.netloc == "127.0.0.1:7413"
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection.request(method or ("GET" if body is None else "POST"), target, body, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    lines = "".join(blocks(PAGE, "sh")).splitlines()
    assert lines[0] == "tickwheel web"
    with Daemon(tmp_path / "data") as daemon:
        process = Shell(tmp_path, daemon.url).popen("web", "--port", "0", "--json")
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        answers: list[tuple[int, Any]] = []
        for line in lines[1:]:
            received = next((answer["items"][0] for _, answer in answers if answer.get("items")), None)
            words = line if received is None else line.replace(RECEIPT, received["receipt"])
            answers.append(curl(shlex.split(words)[1:], port))
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert [status for status, _ in answers] == [201, 200, 200, 200, 201, 200, 200]
    assert answers[1][1]["text"] == "call Ada"
    assert [answer["result"] for _, answer in answers[2:4]] == ["rescheduled", "cancelled"]
    assert answers[5][1]["items"][0]["body"] == {"to": "ada"}
    assert answers[6][1]["ack"] == ["acked"]


def test_the_commands_of_the_page_on_the_dashboard(tmp_path: Path) -> None:
    serving, create, *watching = "".join(blocks(DASHBOARD, "sh")).splitlines()
    assert all(line.startswith("tickwheel top ") for line in watching), "which the tests of tickwheel top run"
    data = tmp_path / "data"
    words = create.replace("/var/lib/tickwheel", str(data)).removeprefix("tickwheel ")
    token = Shell(tmp_path).run(*shlex.split(words)).stdout.decode().split()
    with Daemon(data) as daemon:
        process = Shell(tmp_path, daemon.url).popen(*serving.split()[1:], "--port", "0", "--json")
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/login?next=%2F")
        answer.read()
        fields = {"token": next(word for word in token if word.startswith("twk_")), "next": "/"}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{port}"}
        connection.request("POST", "/login", urlencode(fields), headers)
        answer = connection.getresponse()
        answer.read()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        assert cookie.startswith(f"tw-{port}=")
        connection.request("GET", "/", headers={"Cookie": cookie})
        assert connection.getresponse().status == 200
        connection.close()
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("number", range(len(blocks(PAGE, "python"))))
async def test_the_program_of_the_page(tmp_path: Path, number: int) -> None:
    with Daemon(tmp_path / "data") as daemon:
        program = blocks(PAGE, "python")[number].replace("tickwheel://127.0.0.1:7411", daemon.url)
        around: dict[str, Any] = {}
        exec(compile(program, str(PAGE), "exec"), around)
        site = around["site"]
        async with site.router.lifespan_context(site):
            assert (await Caller(site)("GET", "/tickwheel/v1/stats")).status == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_example_with_curl_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        web = started(Shell(tmp_path, daemon.url))
        script = ["sh", str(ROOT / "examples" / "http_curl.sh"), web.url]
        said = subprocess.run(script, capture_output=True, check=True, timeout=PATIENCE_S).stdout.splitlines()
        web.process.terminate()
        web.process.communicate(timeout=PATIENCE_S)
    sent, received, settled = map(json.loads, said)
    assert not sent["duplicate"]
    assert [(item["id"], item["body"]) for item in received["items"]] == [(sent["id"], {"to": "ada"})]
    assert settled["ack"] == ["acked"]


@pytest.mark.parametrize("number", range(len(blocks(PAGE, "py"))))
async def test_the_test_of_the_page(number: int) -> None:
    """It stands within a test of the reader's."""
    body = indent(blocks(PAGE, "py")[number], "    ")
    around: dict[str, Any] = {}
    exec(compile(f"async def test():\n{body}    return received", str(PAGE), "exec"), around)
    assert (await around["test"]()).status == 200
