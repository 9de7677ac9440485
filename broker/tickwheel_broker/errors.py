"""What goes wrong, sorted: errors that are told to one client, and those that end the broker."""

from __future__ import annotations

from tickwheel.protocol.bodies.requests import encode_error
from tickwheel.protocol.errors import ServerError, TickwheelError, error_class
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel_broker.group_commit import SyncFailed
from timerlog.errors import DirectoryGone, DiskFull, LogFailed, StoreError


class AddressInUse(TickwheelError):
    """Another process listens on this address."""

    code = "address_in_use"
    advice = "Stop the other process, or choose another listen_port or unix_socket."


class CannotListen(TickwheelError):
    """The address cannot be listened on."""

    code = "cannot_listen"
    advice = "Check listen_host, listen_port and unix_socket, and the permissions of the socket's directory."


class ServerExtraMissing(TickwheelError):
    """What the HTTP listener needs is not installed."""

    code = "extra_missing"
    advice = "Install it where the broker runs: pip install 'tickwheel[server]'; or set http_listen = false."


class LogNotWritten(TickwheelError):
    """The disk did not take the log, so the broker stopped."""

    code = "log_failed"
    advice = "Check the disk, then start again: everything that was acknowledged is on it."


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What is inside of groups of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def from_store(error: StoreError) -> TickwheelError:
    """The typed error, for clients and callers, of one that the storage engine raised."""
    cls = error_class(error.code)
    typed = cls(str(error) or None, advice=error.advice)
    if cls is ServerError:  # one that clients never see
        typed.code = error.code
    if error.code == LogFailed.code:
        typed = LogNotWritten(str(error) or None)
    return typed


def refusal_of(error: StoreError | TickwheelError) -> TickwheelError:
    """What a client is told of a request that failed. Raises the error again if it ends the broker."""
    if isinstance(error, TickwheelError):
        return error
    if ends_the_broker(error):
        raise error
    return from_store(error)


def no_room(error: DiskFull) -> TickwheelError:
    """What a client is told of a send for which there is no room: one code, and what it is that is used up."""
    cls = error_class(DiskFull.code)
    return cls() if type(error) is DiskFull else cls(str(error), advice=error.advice)


def advice_for(error: StoreError) -> str:
    """What to do about it, for the log."""
    return from_store(error).advice


def ends_the_broker(error: BaseException) -> bool:
    """Whether the log can no longer be trusted to take writes: then nothing more may be acknowledged."""
    return isinstance(error, SyncFailed | LogFailed | DirectoryGone | OSError)


def error_frame(correlation: int, error: TickwheelError) -> bytes:
    """A whole ERROR frame."""
    return encode_frame(FrameType.ERROR, correlation, encode_error(error))
