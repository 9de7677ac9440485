"""The programs of the pages on Dramatiq and Taskiq, as they are written, on a real broker."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import dramatiq
import httpx
import pytest

import tickwheel.sync
from tests.integration.queues.test_dramatiq import JOIN_MS, working
from tests.integration.queues.test_taskiq import until
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.dramatiq import TickwheelBroker

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
WRITTEN_URL = "tickwheel://127.0.0.1:7411"


def blocks(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def daemon(fresh_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """The programs find it by their environment."""
    monkeypatch.setenv("TICKWHEEL_URL", fresh_daemon.url)
    return fresh_daemon


def module_of(block: str, name: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of the page as a module that others can import."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(block.replace(WRITTEN_URL, daemon.url), f"{name}.py", "exec"), vars(module))
    return module


def test_the_page_on_dramatiq(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, send, looking, retries = blocks("dramatiq")
    broker: TickwheelBroker = module_of(tasks, "shop.tasks", daemon, monkeypatch).broker
    assert dramatiq.get_broker() is broker
    around: dict[str, Any] = {"__name__": "page"}
    exec(compile(send, "dramatiq.md", "exec"), around)
    exec(compile(looking, "dramatiq.md", "exec"), around)
    with working(broker):
        broker.join("letters", timeout=JOIN_MS)
    assert capsys.readouterr().out == "order 17: thanks\n"
    exec(compile(retries, "dramatiq.md", "exec"), around)
    assert [type(one).__name__ for one in around["broker"].middleware][-1] == "BrokerRetries"
    broker.close()
    shell = Shell(tmp_path, daemon.url)
    text = (PAGES / "dramatiq.md").read_text(encoding="utf-8")
    commands = re.findall(r"`tickwheel ([a-z ]+ letters)`", text)
    assert len(commands) == 2
    for command in commands:
        shell.run(*shlex.split(command))


def test_the_page_on_taskiq(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, as a reader starts them."""
    tasks, send, plan, labelled, web = blocks("taskiq")
    (tmp_path / "shop").mkdir()
    for file, text in {"shop/tasks.py": tasks + labelled, "send.py": send, "plan.py": plan}.items():
        assert text.startswith(f"# {file}\n")
        (tmp_path / file).write_text(text.replace(WRITTEN_URL, daemon.url))

    def said(program: str) -> list[str]:
        command = [sys.executable, program]
        done = subprocess.run(
            command, cwd=tmp_path, check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.splitlines()

    assert said("send.py") == ["cancelled"]
    planned = {line.partition(" ")[2] for line in said("plan.py")}
    assert planned >= {"0:05:00", "30 9 * * MON-FRI"}

    def rhythms() -> list[str]:
        with tickwheel.sync.Client(daemon.url) as client:
            return sorted(one.cron or "" for one in client.schedules())

    assert rhythms() == ["", "30 9 * * MON-FRI"]
    with (tmp_path / "said").open("wb") as output:
        words = [sys.executable, "-m", "taskiq", "worker", "--workers", "1", "shop.tasks:broker"]
        worker = subprocess.Popen(words, cwd=tmp_path, stdout=output, stderr=output)

    async def is_done() -> bool:
        printed = (tmp_path / "said").read_text()
        assert worker.poll() is None, printed
        return "ada: it is time" in printed and "carol: it is time" in printed and len(rhythms()) == 3

    try:
        asyncio.run(until(is_done))
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)
    assert rhythms() == ["", "0 7 * * *", "30 9 * * MON-FRI"]

    module_of(tasks, "shop.tasks", daemon, monkeypatch)
    app = module_of(web, "shop.web", daemon, monkeypatch).app

    async def use_it() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http,
        ):
            assert (await http.put("/trials/ada")).status_code == 202
            assert (await http.delete("/trials/ada")).json() == {"result": "cancelled"}
            assert (await http.delete("/trials/bob")).json() == {"result": "not_found"}

    asyncio.run(use_it())


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
