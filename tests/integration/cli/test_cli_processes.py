"""The real program says and does the same as a command that runs in the process of the tests, as most here do."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cli_harness import Serve, Shell

COMMANDS = [
    "--version",
    "--help",
    "help exit-codes",
    "send --help",
    "",
    "sned t x",
    "send",
    "send t x --in soon",
    "send t x --in 1h --json",
    "send t --from-file - --json",
    "send t x --unknown",
    "receive t --count 1 --raw",
    "receive t --group g --count 1 --timeout 20s --json",
    "receive t --count none",
    "browse t --json",
    "show t --key no",
    "topics",
    "topics list --json",
    "topics show no --json",
    "stats",
    "query 'select 1 as one' --json",
    "inspect nowhere",
    "--json inspect nowhere",
    "config show --listen-port 99999999",
    "send t x --data data",
    "completion bash",
]
"""Each in a directory of its own, with a topic of its own for ``t``, which has one message."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("processes")) as serve:
        yield serve


@pytest.mark.parametrize("line", COMMANDS)
def test_it_is_the_same_in_a_process_of_its_own(serving: Serve, tmp_path: Path, line: str) -> None:
    url = next(url for url in serving.urls if url.startswith("tickwheel://"))
    here, away = (Shell(tmp_path / name, url) for name in ("here", "away"))
    for shell in (here, away):
        shell.directory.mkdir()
        shell.run("send", topic_of(shell, line), "first", "--key", topic_of(shell, line))
    stdin = b'{"body": "from a file"}\n' if "--from-file" in line else b""
    done = here.run_here(words_of(here, line), stdin), away.run_process(words_of(away, line), stdin)
    assert shown(done[0]) == shown(done[1])


def topic_of(shell: Shell, line: str) -> str:
    return f"{shell.directory.name}-{COMMANDS.index(line)}"


def words_of(shell: Shell, line: str) -> tuple[str, ...]:
    return tuple(topic_of(shell, line) if word == "t" else word for word in shlex.split(line))


def shown(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    """Without what is another each time: topics, ids and times, and the space that they leave in a table."""
    texts = [
        re.sub(r"\s+|─+", " ", re.sub(r"\d+", "0", re.sub(r"(here|away)-\d+", "t", stream.decode())))
        for stream in (done.stdout, done.stderr)
    ]
    return done.returncode, texts[0], texts[1]
