"""The exception tree. Every error has a stable ``code``, says what to do about it, and whether to try again.

What the storage engine refuses has the same codes (``timerlog.errors``), and clients are told of it by these classes:
so what is said about a code stands here only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tickwheel.protocol.errors.base import TickwheelError as TickwheelError
from tickwheel.protocol.errors.base import to_wire as to_wire
from tickwheel.protocol.errors.client import *
from tickwheel.protocol.errors.connection import *
from tickwheel.protocol.errors.directory import *
from tickwheel.protocol.errors.requests import *
from tickwheel.protocol.errors.requests import ServerError
from tickwheel.protocol.errors.security import *


def _subclasses(cls: type[TickwheelError]) -> Iterator[type[TickwheelError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


_CLASSES: Final[tuple[type[TickwheelError], ...]] = (TickwheelError, *_subclasses(TickwheelError))
if not TYPE_CHECKING:  # type checkers read literal lists only; they take the imports above
    __all__ = [*(cls.__name__ for cls in _CLASSES), "error_class", "error_from_wire", "to_wire"]

# A base class and its refinement may share a code: the refinement comes later and wins.
_CLASS_OF_CODE: Final[dict[str, type[TickwheelError]]] = {cls.code: cls for cls in _CLASSES[1:]}


def error_class(code: str) -> type[TickwheelError]:
    """The class of an error code; ``ServerError`` for one that this version does not know."""
    return _CLASS_OF_CODE.get(code, ServerError)


def error_from_wire(fields: Mapping[str, Any]) -> TickwheelError:
    """The typed exception of an ERROR body: ``{code, message, advice, retryable}``."""
    cls = error_class(str(fields["code"]))
    error = cls(str(fields["message"]), advice=str(fields["advice"]))
    if cls is ServerError:
        error.code = str(fields["code"])
    error.retryable = bool(fields["retryable"])
    if fields.get("details"):
        error.details = dict(fields["details"])
    return error
