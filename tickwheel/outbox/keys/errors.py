"""What can be wrong with keys, values and operations, as typed errors."""

from __future__ import annotations

from tickwheel.outbox.errors import OutboxError


class BadKey(OutboxError):
    """A key is empty, too long, or no bytes."""

    code = "bad_key"
    advice = "Keys are bytes (or str, taken as UTF-8), from 1 to 1,024 of them."


class BadValue(OutboxError):
    """A value is too long, or no bytes."""

    code = "bad_value"
    advice = "Values are bytes, at most 4 MiB of them."


class BadLimit(OutboxError):
    """A number of results is not greater than 0, or a setting of a service makes no sense."""

    code = "bad_limit"
    advice = "Ask for 1 or more."


class BadOperation(OutboxError):
    """An operation cannot be executed, because it is none of those that there are."""

    code = "bad_operation"
    advice = "Use Put, Increment, Delete, DeleteRange or Account."


class NotAnInteger(OutboxError):
    """A value cannot be incremented, because it is no integer."""

    code = "not_an_integer"
    advice = (
        "Counters are decimal digits, like b'-42'. Put one, or delete the key: a missing key counts as 0."
    )


class CounterOverflow(OutboxError):
    """A counter would leave the 64 bits of a signed integer; it was not changed."""

    code = "counter_overflow"
    advice = "Counters go from -2^63 to 2^63 - 1. Put a smaller value."
