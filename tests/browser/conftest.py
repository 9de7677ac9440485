"""A real browser: Debian's Chromium, driven by playwright. What its pages complain of fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import anyio
import pytest

import tickwheel
from tests.browser.tabs import PATIENCE_MS, Tabs
from tests.support.clients.filled import fill
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the program."""
    program = os.environ.get("TICKWHEEL_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, _PROGRAMS)), None
    )
    if program is None:
        _missing("there is no Chromium (Debian: chromium)")
    if find_spec("playwright") is None:
        _missing("there is no playwright: pip install playwright")
    return program


class Launched:
    """A Chromium that runs: another one after it has crashed, so that one test fails and not all that follow."""

    def __init__(self, launch: Callable[[], Browser]) -> None:
        self._launch = launch
        self._browser = launch()

    def running(self) -> Browser:
        if not self._browser.is_connected():
            self._browser = self._launch()
        return self._browser

    def close(self) -> None:
        self._browser.close()


@pytest.fixture(scope="module")
def launched(chromium: str) -> Iterator[Launched]:
    """One for each module, not for all: until it ends, playwright's loop counts as the one that runs in this thread,
    and tests elsewhere that run loops of their own fail."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Its own sandbox wants rights that containers do not have. It only sees pages of ours.
        launch = partial(playwright.chromium.launch, executable_path=chromium, args=["--no-sandbox"])
        launched = Launched(launch)
        yield launched
        launched.close()


@pytest.fixture
def browser(launched: Launched) -> Browser:
    return launched.running()


class Site:
    """A dashboard, and what stands for the parts of its paths."""

    def __init__(self, web: Web, parts: dict[str, str], token: str, daemon: Daemon) -> None:
        self.url = web.url
        self.parts = parts
        self.token = token
        self.daemon = daemon


@pytest.fixture(scope="session")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Of a broker with tokens, and with something for each page."""
    folder: Path = tmp_path_factory.mktemp("site")
    shell, data = Shell(folder), str(folder / "data")
    token = str(shell.json("tokens", "create", "ada", "--grant", "all:*", "--data", data)["token"])
    with Daemon(folder / "data") as daemon:

        async def filled() -> dict[str, str]:
            async with tickwheel.Client(daemon.url, token=token) as client:
                return await fill(client)

        with ThreadPoolExecutor() as threads:  # in this one a browser may run a loop
            parts = threads.submit(anyio.run, filled).result()
        web = started(Shell(folder, daemon.url))
        yield Site(web, parts, token, daemon)
        web.process.terminate()
        web.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def tabs(browser: Browser, site: Site) -> Iterator[Tabs]:
    """Tabs that are logged in; at the end each must have been content."""
    with Tabs(browser, site.url, site.token) as found:
        yield found


@pytest.fixture
def strangers(browser: Browser, site: Site) -> Iterator[Tabs]:
    """Tabs of somebody who has not logged in."""
    with Tabs(browser, site.url, "") as found:
        yield found
