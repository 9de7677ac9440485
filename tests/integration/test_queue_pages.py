"""The programs of the pages on Dramatiq and Taskiq, as they are written, on a real broker."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import dramatiq
import httpx
import pytest

from tests.integration.cli_harness import Shell
from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tests.integration.test_dramatiq import JOIN_MS, working
from tests.integration.test_taskiq import until
from tests.integration.test_taskiq import working as at_work

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
WRITTEN_URL = "tickwheel://127.0.0.1:7411"


def blocks(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data") as running:
        monkeypatch.setenv("TICKWHEEL_URL", running.url)
        yield running


def test_the_page_on_dramatiq(daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, looking, retries = blocks("dramatiq")
    around: dict[str, Any] = {"__name__": "page"}
    exec(compile(first.replace(WRITTEN_URL, daemon.url), "dramatiq.md", "exec"), around)
    broker = around["broker"]
    assert dramatiq.get_broker() is broker
    exec(compile(looking, "dramatiq.md", "exec"), around)
    with working(broker):
        broker.join("letters", timeout=JOIN_MS)
    assert "order 17: thanks" in capsys.readouterr().out
    exec(compile(retries, "dramatiq.md", "exec"), around)
    assert [type(one).__name__ for one in around["broker"].middleware][-1] == "BrokerRetries"
    broker.close()
    shell = Shell(tmp_path, daemon.url)
    text = (PAGES / "dramatiq.md").read_text(encoding="utf-8")
    commands = re.findall(r"`tickwheel ([a-z ]+ letters)`", text)
    assert len(commands) == 2
    for command in commands:
        shell.run(*shlex.split(command))


def test_the_page_on_taskiq(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ModuleType("taskiq_page")
    monkeypatch.setitem(sys.modules, "taskiq_page", page)  # where Taskiq looks for the functions of tasks
    first, schedules, labelled, application = blocks("taskiq")

    async def follow() -> None:
        around = vars(page)
        await run_piece(first, daemon, around)
        await run_piece(schedules, daemon, around)
        broker, source = around["broker"], around["schedules"]
        left = await source.get_schedules()
        assert sorted(one.cron or str(one.interval) for one in left) == ["0:05:00", "30 9 * * MON-FRI"]
        await run_piece(labelled, daemon, around)
        assert len(await source.get_schedules()) == 3
        said = ""

        async def is_said() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return "ada: it is time" in said and "carol: it is time" in said

        async with at_work(broker):
            await until(is_said)
        await broker.shutdown()
        await run_piece(application, daemon, around)
        app = around["app"]
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http,
        ):
            assert (await http.put("/trials/ada")).status_code == 202
            assert (await http.delete("/trials/ada")).json() == {"result": "cancelled"}
            assert (await http.delete("/trials/bob")).json() == {"result": "not_found"}

    async def run_piece(block: str, daemon: Daemon, around: dict[str, Any]) -> None:
        text = block.replace(WRITTEN_URL, daemon.url)
        code = compile(text, "taskiq.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert isinstance(code, CodeType)
        result = eval(code, around)
        if isinstance(result, Awaitable):
            await asyncio.wait_for(result, PATIENCE_S)

    asyncio.run(follow())


@pytest.mark.parametrize("framework", ["dramatiq", "taskiq"])
def test_without_the_framework_the_error_names_what_to_install(framework: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{framework!r}] = None\n"
        "import tickwheel\n"
        "try:\n"
        f"    import tickwheel.{framework}\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{framework.capitalize()}Missing ")
    assert f"pip install 'tickwheel[{framework}]'" in said


def test_tickwheel_itself_imports_no_framework() -> None:
    program = (
        "import sys, tickwheel.sync, tickwheel.testing\nprint({'dramatiq', 'taskiq'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"
