"""Calls in a child that was forked within an event loop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import anyio

from tickwheel.errors import ClientForked


async def raised_in_child(*calls: Callable[[], Awaitable[object]]) -> list[str]:
    """Fork within the loop, and return what calls raise in the child: the codes of `ClientForked`, other errors as
    they are shown."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in calls:
            try:
                await call()
            except ClientForked as error:
                said.append(error.code)
            except BaseException as error:
                said.append(repr(error))
        os.write(writing, " ".join(said).encode())
        os._exit(0)
    await anyio.to_thread.run_sync(os.waitpid, pid, 0)
    os.close(writing)
    told = os.read(reading, 1000)
    os.close(reading)
    return told.decode().split()
