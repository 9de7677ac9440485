"""A server of the standard library in a thread, from the time it is entered until it is left."""

from __future__ import annotations

import threading
from socketserver import BaseServer
from typing import Final

_POLL_S: Final = 0.05
"""So long the end of a server takes at most."""


class ServerThread:
    """What serves."""

    def __init__(self, server: BaseServer) -> None:
        """``server`` listens already."""
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": _POLL_S}, daemon=True
        )

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more, and listens no more. Threads of requests that are not done are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
