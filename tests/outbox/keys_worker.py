"""A dispatcher or an executor for tests to kill."""

from __future__ import annotations

import os

import anyio

from tickwheel.outbox import KeySpace

PROGRAM = """
import sys
from tests.outbox.keys_worker import main
main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
"""


async def work(url: str, name: str, service: str, lease_s: float, batch_size: int) -> None:
    """Works until it is killed."""
    space = KeySpace(url, name)
    make = space.dispatcher if service == "dispatcher" else space.executor
    os.write(1, b"ready")
    await make(lease_s=lease_s, batch_size=batch_size).run()


def main(url: str, name: str, lease_s: float, batch_size: int, service: str) -> None:
    """All of it."""
    anyio.run(work, url, name, service, lease_s, batch_size, backend="trio")
