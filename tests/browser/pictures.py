"""The pictures of docs/how-to/dashboard.md: each page, light and dark: python -m tests.browser.pictures"""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import urlencode

import click
import uvicorn
from anyio.from_thread import start_blocking_portal
from PIL import Image
from playwright.sync_api import sync_playwright

import tickwheel.web
from tests.browser.shop import DELIVERED_KEY, opened
from tests.browser.tabs import Tabs
from tickwheel.testing import TestBroker
from tickwheel_web.dashboard import site
from tickwheel_web.dashboard.figures.history import History

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images" / "dashboard"
_SQL: Final = (
    "select topic, state, count(*) as messages, min(deliver_at) from messages group by all order by all"
)
PAGES: Final = {
    "overview": "/",
    "forecast": "/forecast?horizon=month",
    "wheel": "/wheel",
    "lateness": "/lateness",
    "topics": "/topics",
    "topic": "/topics/{topic}",
    "group": "/topics/{topic}/groups/{group}",
    "messages": "/messages?topic=mails",
    "message": "/messages/{id}",
    "delivered": "/messages/{delivered}",
    "dead": "/dead",
    "letters": "/dead?topic=orders",
    "send": "/send",
    "schedules": "/schedules",
    "schedule": "/schedule/{schedule}",
    "calendar": "/schedules/calendar?zone=Europe/Berlin",
    "endpoints": "/endpoints",
    "endpoint": "/endpoint/{endpoint}",
    "query": "/query?" + urlencode({"sql": _SQL, "run": 1}),
    "clients": "/clients",
    "audit": "/audit",
    "login": "/login",
}
THEMES: Final = ("light", "dark")
MAX_BYTES: Final = 60_000
MAX_HEIGHT: Final = 1_100
_SETTLED_MS: Final = 1_500
"""What scripts ask for has come, and is drawn."""
_COLOURS: Final = (256, 128, 64, 32)
_METHOD: Final = Image.Quantize.MAXCOVERAGE
"""With the colours that lie furthest apart: a warning that is small keeps its own."""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(PAGES)))
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, help="Where they go.")
@click.option("--width", default=1_280)
@click.option("--whole", is_flag=True, help="Pages to their ends, as many colours as they have.")
def main(names: tuple[str, ...], folder: Path, width: int, whole: bool) -> None:
    """See the module."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no Chromium (Debian: chromium)")
    folder.mkdir(parents=True, exist_ok=True)
    history = History()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(opened(history)) as (broker, parts),
        _served(broker, history) as url,
        sync_playwright() as playwright,
    ):
        with broker.sync_client() as client:
            parts["delivered"] = str(client.message("mails", key=DELIVERED_KEY).id)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with Tabs(browser, url, "") as tabs:
            for name in names or PAGES:
                for theme in THEMES:
                    page = tabs.open(PAGES[name].format(**parts), width=width, theme=theme)
                    page.locator(".htmx-request").wait_for(state="hidden")
                    if name == "overview":
                        page.locator("[data-live=sent_rate]").filter(has_text="/s").wait_for()
                    page.wait_for_timeout(_SETTLED_MS)
                    height = page.evaluate("document.documentElement.scrollHeight")
                    path = folder / f"{name}-{theme}.png"
                    size = {"width": width, "height": height if whole else min(height, MAX_HEIGHT)}
                    page.set_viewport_size(size)
                    page.screenshot(path=path)
                    page.context.close()
                    click.echo(f"{path}: {path.stat().st_size if whole else _shrink(path):,} bytes")
            for complaint in tabs.complaints:
                click.echo(complaint, err=True)
            tabs.complaints.clear()  # a picture is no test
        browser.close()


@contextmanager
def _served(broker: TestBroker, history: History) -> Iterator[str]:
    """The dashboard, which knows of the past."""
    with mock.patch.object(site, "History", return_value=history):
        app = tickwheel.web.app(broker.url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _shrink(path: Path) -> int:
    """With as many colours as go into so many bytes; where few are too many, without its end."""
    with Image.open(path) as opened_file:
        picture: Any = opened_file.convert("RGB")
    for colours in _COLOURS:
        picture.quantize(colours, _METHOD, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MAX_BYTES:
            break
    while path.stat().st_size > MAX_BYTES:
        picture = picture.crop((0, 0, picture.width, picture.height - 50))
        picture.quantize(_COLOURS[-1], _METHOD, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.stat().st_size


if __name__ == "__main__":
    main()
