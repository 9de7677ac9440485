"""Ctrl-C waits until the client waits, or has done what it was about: so it costs no message and no connection.

As event loops do it, and only in the place of Python's own handler: one that a program has set is the program's affair.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_signals: Final[Any] = sys.modules.get("_signal", signal)
"""What `signal` is made of. Its functions look for the name of each handler besides, for 10 us a call of the client."""
_INTERRUPT: Final = int(signal.SIGINT)


class Shield:
    """Of one call, in the main thread. The handler is set once a call: that costs more than all else here."""

    def __init__(self, before: Any) -> None:
        """``before``: the handler that there was."""
        self._before = before
        self._has_come = False
        self.is_lifted = False

    def put_up(self) -> None:
        """From now on Ctrl-C is only noted."""
        self.is_lifted = True
        _signals.signal(_INTERRUPT, self._note)

    def lower(self) -> None:
        """It may come again. Raises KeyboardInterrupt if it came meanwhile."""
        self.is_lifted = False
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt

    def lift(self) -> None:
        """It is only noted again."""
        self.is_lifted = True

    def put_away(self) -> None:
        """The end of the call. Raises as `lower`."""
        _signals.signal(_INTERRUPT, self._before)
        self.lower()

    def _note(self, *_: Any) -> None:
        if not self.is_lifted:
            raise KeyboardInterrupt
        self._has_come = True


def shield_here() -> Shield | None:
    """One for a call of this thread. None: Ctrl-C does not come here, or a program has a handler of its own for it, or
    the shield of another call, in whose middle this one is made, is lifted already."""
    if threading.current_thread() is not threading.main_thread():
        return None
    before = _signals.getsignal(_INTERRUPT)
    if before is signal.default_int_handler:
        return Shield(before)
    # Of a call that waits, and a handler of a signal has come above it.
    above = getattr(before, "__self__", None)
    return Shield(before) if isinstance(above, Shield) and not above.is_lifted else None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that waits for nothing, whole: Ctrl-C comes at its end."""
    shield = shield_here()
    if shield is None:
        yield
        return
    try:
        shield.put_up()
        yield
    finally:
        shield.put_away()
