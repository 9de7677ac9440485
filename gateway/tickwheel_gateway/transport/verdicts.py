"""Why a request cannot be served, whichever library has read it: a status and a text."""

from __future__ import annotations

from typing import Final, TypeAlias

from tickwheel_gateway.transport.call import Status

Verdict: TypeAlias = tuple[Status, str]

BAD_TIMEOUT: Final[Verdict] = (Status.INTERNAL, "grpc-timeout is malformed")
LARGE_HEAD: Final[Verdict] = (Status.RESOURCE_EXHAUSTED, "the metadata are too large")
CROWDED: Final[Verdict] = (Status.RESOURCE_EXHAUSTED, "too many answers wait for the client")
BAD_FLAG: Final[Verdict] = (Status.INTERNAL, "neither 0 nor 1 says whether a message is compressed")
TWO_MESSAGES: Final[Verdict] = (Status.INTERNAL, "more than one message in a request that is no stream")
MUCH_PARTIAL: Final[Verdict] = (Status.RESOURCE_EXHAUSTED, "too many large requests at once")
HALF_MESSAGE: Final[Verdict] = (Status.INTERNAL, "the request ends within a message")
NO_MESSAGE: Final[Verdict] = (Status.INTERNAL, "a request without a message")


def unknown_method(path: str) -> Verdict:
    """There is none of that name."""
    return Status.UNIMPLEMENTED, f"method {path[:200]!r} is unknown"


def large_message(size_bytes: int, most_bytes: int) -> Verdict:
    """It says itself how long it will be."""
    return Status.RESOURCE_EXHAUSTED, f"a message of {size_bytes} bytes; at most {most_bytes} are allowed"
