"""The dashboard beside the demonstration: its link, how long it stays, and how to get it afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tickwheel_cli.shared.output import print_json, stdout_console
from tickwheel_cli.shared.session import current_session

PORT: Final = 7413
UNSEEN_STAY_S: Final = 60.0
"""So long it stays where there is no terminal to press Ctrl-C at."""
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")
_NAME: Final = "tickwheel"


def tell_link(url: str) -> None:
    """Before the replay."""
    if current_session().json:
        print_json({"web": url})
    else:
        stdout_console().print(f"Dashboard: {url}/\n", style="bold", markup=False)


def stay(url: str, wanted_s: float | None) -> None:
    """After the replay; until Ctrl-C, or for a time."""
    console = stdout_console()
    if wanted_s is None and not console.is_terminal:
        wanted_s = UNSEEN_STAY_S
    if not current_session().json:
        until = "until Ctrl-C" if wanted_s is None else f"for {wanted_s:g} s, or until Ctrl-C"
        console.print(f"\nThe dashboard stays at {url}/ {until}.", markup=False)
    with suppress(KeyboardInterrupt):
        threading.Event().wait(wanted_s)


def tell_how_to_watch(kept: Path | None, options: list[str]) -> None:
    """After a replay without it: of the data that was kept, or else of the same replay, with these `options`."""
    if current_session().json:
        return
    lines = []
    if any(find_spec(package) is None for package in _PACKAGES):
        lines.append("The dashboard needs what this installs:")
        lines.append(f"  {shlex.quote(sys.executable)} -m pip install 'tickwheel[web]'")
    if kept is not None:
        lines.append(f"Look at all of it in the dashboard, http://127.0.0.1:{PORT}/:")
        lines.append(f"  {program()} serve --data {shlex.quote(str(kept))} --web")
    else:
        lines.append("Watch it in the dashboard, in a browser:")
        lines.append(f"  {shlex.join([*shlex.split(program()), 'demo', '--web', *options])}")
    stdout_console().print("", *lines, sep="\n", markup=False)


def program() -> str:
    """What a shell starts this program with."""
    called = Path(sys.argv[0])
    if called.name != _NAME:
        return shlex.join([sys.executable, "-m", _NAME])
    found = shutil.which(_NAME)
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return _NAME
    return shlex.quote(str(called))
