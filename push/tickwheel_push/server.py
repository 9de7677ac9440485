"""`tickwheel push`: a client, the endpoints, who watches, and the signals that end it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import TypeAlias

import anyio
from anyio.abc import SocketAttribute

from tickwheel import Client, TickwheelError
from tickwheel.sharing.listener import Listener
from tickwheel_push.process import Push, Settings
from tickwheel_push.tally import Tally

Place: TypeAlias = tuple[str, int]
"""Host and port."""

_log = logging.getLogger("tickwheel.push")


async def serve(
    client: Client, settings: Settings, watched_at: Place | None, ready: Callable[[Place | None], None]
) -> None:
    """Until SIGTERM or Ctrl-C; a second one does not wait for what is on its way. ``watched_at``: where to listen for
    who watches. Raises TickwheelError, and OSError if it cannot listen."""
    tally, failed = Tally(), None
    async with client, anyio.create_task_group() as group:
        push = Push(client, settings, tally)
        try:
            place = None
            if watched_at is not None:
                host, port = watched_at
                listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
                address = listener.listeners[0].extra(SocketAttribute.local_address)
                place = host, int(address[1])
                watching = Listener(tally, lambda: push.is_ready, push.look)
                for one in listener.listeners:
                    group.start_soon(watching.listen, one)
            group.start_soon(_end_by_signal, push, group.cancel_scope)
            await push.run(lambda: ready(place))
        except (TickwheelError, OSError) as error:
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _end_by_signal(push: Push, everything: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if push.is_stopping:
                everything.cancel()
                return
            _log.info("ends as soon as what is on its way was answered")
            push.stop()
