"""The commands and the pieces of programs on the how-to pages, run as they are written against a real daemon."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import CodeType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
ENDLESS_RECEIVE_S = "1s"
RECEIPT = "AQcAAAASBAAAAAAAAAEAAACS-qZ6"
"""On pages; that of what was received takes its place."""

# What a page takes for granted, as commands that a reader has typed before.
BEFORE: dict[str, list[str]] = {
    "fetching": ["send mails hello"] * 12,
    "history": ["send reminders unpaid --in 1m --key order-17"],
    "query": ["send orders paid --key 17"],
    "reminders": ["send reminders tea --in 1h", "send orders paid"],
    "retries-and-dead-letters": [
        "topics create mails --max-attempts 1",
        "send mails hello",
        "receive mails --count 1 --nack 0s",
        *["send mails again"] * 3,
    ],
    "transactions": ["send reminders unpaid --in 1h --key order-17"],
}
FILES = {
    "changes.jsonl": '{"send": {"topic": "invoices", "body": "17", "key": "invoice-17"}}\n'
    '{"cancel": {"topic": "reminders", "key": "order-17"}}\n',
    "webshop.token": "twk_of_the_webshop\n",
    "billing.token": "twk_of_billing\n",
}


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """The files that the pages name are there."""
    for name, text in FILES.items():
        (shell.directory / name).write_text(text)
    return shell


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_leads_to_an_example(page: Path) -> None:
    """What the examples print is checked in tests/unit/tickwheel/test_examples.py."""
    linked = re.findall(r"\]\(\.\./\.\./examples/(\w+\.py)\)", page.read_text(encoding="utf-8"))
    assert linked
    assert all((ROOT / "examples" / name).is_file() for name in linked)


# The pages on Spark: tests/spark/test_spark_page.py, where one session does all of them; those on the outbox:
# tests/outbox/test_outbox_pages.py, with a database; those on HTTP and the dashboard:
# tests/integration/web/test_web_page.py; those on consumers: tests/integration/cli/test_work.py; those on Celery:
# tests/integration/celery; on tasks of Django: tests/integration/django/test_shop.py; on other task queues:
# tests/integration/queues/test_queue_pages.py.
ELSEWHERE = ("spark", "outbox", "http", "dashboard", "consumers", "celery", "django", "dramatiq", "taskiq")


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "sh") and not p.stem.startswith(ELSEWHERE)],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page(page: Path, shell: Shell) -> None:
    lines = "".join(blocks(page, "sh")).splitlines()
    commands = [line.removeprefix("tickwheel ") for line in lines if line.startswith("tickwheel ")]
    assert commands
    receipt = RECEIPT
    for command in (*BEFORE.get(page.stem, []), *commands):
        words = shlex.split(command.replace(RECEIPT, receipt), comments=True)
        if words[0] == "receive" and "--count" not in words:
            words += ["--timeout", ENDLESS_RECEIVE_S]  # a reader would press Ctrl-C
        said = shell.run(*words).stdout.decode()
        receipt = next(iter(re.findall(r"\(receipt (\S+)\)", said)), receipt)


class Mailbox:
    """What the page on retries calls `send_mail`: it fails in two ways, then works."""

    class TooManyRequests(Exception):
        """As a mail server's library might have it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._failures: list[Exception] = [ConnectionRefusedError("refused"), self.TooManyRequests("slowly")]

    async def send(self, body: bytes) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.sent.append(body)


async def first(
    messages: tickwheel.Subscription[tickwheel.Message, tickwheel.Batch], count: int
) -> AsyncIterator[Any]:
    """A subscription that ends."""
    for _ in range(count):
        yield await messages.receive(PATIENCE_S)


class Receiver:
    """An ASGI application that is away at first, as the page on endpoints has it."""

    def __init__(self) -> None:
        self._statuses = [200, 503]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self._statuses.pop(), "headers": []})
        await send({"type": "http.response.body"})


async def charge(card: str) -> None:
    """A payment that works."""
    assert card


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "python") and not p.stem.startswith(ELSEWHERE)],
    ids=lambda page: page.stem,
)
async def test_the_programs_of_a_page(page: Path, daemon: Daemon) -> None:
    """Pieces of a program: around them are a client, a subscription with three messages, and one order."""
    mailbox = Mailbox()
    async with (
        tickwheel.Client(daemon.url) as client,
        client.subscribe("work") as work,
        client.subscribe("paid") as paid,
    ):
        await client.send_many("work", [b"1", b"2", b"3"])
        await client.send("paid", b"17")
        around: dict[str, Any] = {
            "client": client,
            "subscription": first(work, 3),
            "order": await paid.receive(PATIENCE_S),
            "send_mail": mailbox.send,
            "TooManyRequests": Mailbox.TooManyRequests,
            "charge": charge,
            "card": "1234",
            "UTC": UTC,
            "ZoneInfo": ZoneInfo,
            "datetime": datetime,
            "timedelta": timedelta,
            "tickwheel": tickwheel,
            "app": Receiver(),
        }
        if page.stem == "query":
            await client.send("orders", b"x", key="17")
        with trio.fail_after(PATIENCE_S * 2):
            for block in blocks(page, "python"):
                await run_piece(page, block, around)
            for test in [one for name, one in around.items() if name.startswith("test_")]:
                await test()
        if page.stem == "retries-and-dead-letters":
            assert mailbox.sent == [b"3"]


async def run_piece(page: Path, block: str, around: dict[str, Any]) -> None:
    code = compile(block, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    result = eval(code, around)
    if isinstance(result, Awaitable):
        await result
