"""Commands start with a click whose types take no subscript when a program runs, as those of 8.1 do not."""

from __future__ import annotations

import subprocess
import sys

from tickwheel_cli.main import COMMANDS

PROGRAM = """
import sys
import click

def refuse(cls, item):
    if cls.__module__.startswith("click"):
        raise TypeError(f"type {cls.__name__!r} is not subscriptable")

    return cls

click.ParamType.__class_getitem__ = classmethod(refuse)
from tickwheel_cli.main import COMMANDS
for entry in COMMANDS.values():
    entry.load()
print(len(COMMANDS))
"""


def test_every_command_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(COMMANDS)
