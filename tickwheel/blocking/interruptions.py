"""Ctrl-C waits until the client waits, or has done what it was about: so it costs no message and no connection.

As event loops do it, and only in the place of Python's own handler: one that a program has set is the program's affair.
"""

from __future__ import annotations

import signal
import threading
from typing import Any


class Shield:
    """Of one call, in the main thread."""

    def __init__(self) -> None:
        self._has_come = False

    def lift(self) -> None:
        """From now on Ctrl-C is only noted."""
        signal.signal(signal.SIGINT, self._note)

    def lower(self) -> None:
        """It may come again. Raises KeyboardInterrupt if it came meanwhile."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt

    def _note(self, *_: Any) -> None:
        self._has_come = True


def shield_here() -> Shield | None:
    """One for a call of this thread. None: Ctrl-C does not come here, or a program has a handler of its own for it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    return Shield()
