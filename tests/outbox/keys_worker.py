"""Dispatchers and executors for tests to kill: `python -m tests.outbox.keys_worker URL SPACE LEASE_S BATCH_SIZE`.

For each line that it reads, which names a service, it forks one, which says its process id. It ends all with its input.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import anyio

from tickwheel.outbox import KeySpace


async def work(url: str, name: str, service: str, lease_s: float, batch_size: int) -> None:
    """Works until it is killed."""
    space = KeySpace(url, name)
    make = space.dispatcher if service == "dispatcher" else space.executor
    os.write(1, b"%d\n" % os.getpid())  # in one piece: print writes the end of the line by itself
    await make(lease_s=lease_s, batch_size=batch_size).run()


def main(url: str, name: str, lease_s: float, batch_size: int) -> None:
    """Forks after the imports, which take longer than most workers live."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = []
    for line in sys.stdin:
        child = os.fork()
        if not child:
            anyio.run(work, url, name, line.strip(), lease_s, batch_size, backend="trio")
        children.append(child)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
