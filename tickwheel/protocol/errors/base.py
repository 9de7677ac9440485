"""What every error of Tickwheel is.

The docstring of a class is its default message: it says what happened; ``advice`` says what to do now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TickwheelError(Exception):
    """Something went wrong in Tickwheel."""

    code: str = "internal"
    advice: str = "See the broker's log for the details."
    retryable: bool = False

    details: Mapping[str, Any] = {}
    """What a program may want to know of it; empty for most."""

    def __init__(self, message: str | None = None, *, advice: str | None = None) -> None:
        super().__init__(message or _first_line(type(self)))
        if advice is not None:
            self.advice = advice

    @property
    def message(self) -> str:
        """What happened, in one sentence."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.told(self.advice) if self.advice else self.message

    def told(self, advice: str) -> str:
        """What happened, and this advice, in sentences.

        >>> TickwheelError("there is a topic 'mails' already").told("Use another name.")
        "there is a topic 'mails' already. Use another name."
        """
        stop = "" if self.message.endswith((".", "!", "?", ":")) else "."
        return f"{self.message}{stop} {advice}".strip()

    def copy(self) -> TickwheelError:
        """A fresh exception that says the same: several waiters must not raise (and grow) one traceback."""
        twin = type(self)(self.message, advice=self.advice)
        twin.__dict__.update(self.__dict__)
        return twin


def _first_line(cls: type) -> str:
    return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


def to_wire(error: TickwheelError) -> dict[str, Any]:
    """The ERROR body of an exception."""
    body = {
        "code": error.code,
        "message": error.message,
        "advice": error.advice,
        "retryable": error.retryable,
    }
    return body | {"details": dict(error.details)} if error.details else body
