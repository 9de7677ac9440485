"""A plugin for Kombu's own unit tests: where they say ``memory``, they get Tickwheel.

Those tests do not close their connections, and rely on what earlier ones have left in the memory of the process. So
after each test its connections end as those of a process that has died: what they had comes again.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from kombu.transport import TRANSPORT_ALIASES

from tickwheel.celery.transport import transport
from tickwheel.celery.transport.connection import Connection

_open: WeakSet[Connection] = WeakSet()


class Memory(transport.Transport):
    """Under a name that has no address."""

    def establish_connection(self) -> Connection:
        """To the broker of the suite."""
        self.client.hostname = self.client.port = None
        made = super().establish_connection()
        _open.add(made)
        return made


os.environ["TICKWHEEL_URL"] = os.environ["TEST_BROKER"]
TRANSPORT_ALIASES["memory"] = f"{__name__}:Memory"


def pytest_runtest_teardown(item: Any) -> None:
    """The process of the test has died, as it were."""
    for connection in list(_open):
        connection.end_at_once()
    _open.clear()
