"""What is said with every status of 400 and more: ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from tickwheel.errors import TickwheelError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
_RETRYABLE: Final = (408, 429, 503)
"""Of what HTTP itself refuses; errors of the broker say it themselves."""
_TITLES: Final = {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}
"""Titles of statuses for which Python 3.13 has other phrases: an answer must not depend on the interpreter."""

_CODES_OF_STATUS: Final = {
    400: "bad_argument bad_request bad_time naive_datetime bad_topic_name key_too_long order_key_too_long "
    "headers_too_large bad_schedule bad_endpoint bad_topic_settings bad_query",
    401: "login_required bad_token token_revoked token_expired",
    403: "forbidden connection_denied url_not_allowed",
    404: "not_found unknown_topic unknown_group unknown_schedule unknown_endpoint",
    409: "transaction_refused schedule_exists topic_exists topic_in_use group_in_use endpoint_in_use",
    412: "endpoint_changed",
    413: "body_too_large frame_too_large transaction_too_large",
    429: "too_many_attempts too_many_topics too_many_groups too_many_schedules too_many_endpoints too_many_queries",
    501: "query_unavailable",
    502: "tls_required tls_failed bad_certificate token_needs_tls bad_frame bad_crc bad_handshake "
    "unsupported_protocol unknown_frame",
    503: "not_connected client_closed disk_full shutting_down not_owner too_many_connections "
    "too_many_connections_from_address handshake_timeout grants_changed idle_timeout",
    504: "request_timeout request_uncertain send_uncertain frame_timeout query_timeout",
}
_STATUS_OF_CODE: Final = {
    code: status for status, codes in _CODES_OF_STATUS.items() for code in codes.split()
}

# The advice of an error is for programs that use the client; some of it means something else over HTTP.
_ADVICE: Final = {
    "login_required": "Send a token: Authorization: Bearer twk_…",
    "naive_datetime": "Give its offset from UTC: 2031-05-01T09:00:00+02:00, or Z for UTC.",
    "unknown_schedule": "Check its name: GET /v1/schedules lists them all.",
    "unknown_endpoint": "Check its name: GET /v1/endpoints lists them all; a new one needs its topic and its URL.",
    "url_not_allowed": "Who administers the topic can allow it: PATCH /v1/endpoints/{endpoint} with allow_urls.",
    "unknown_group": "Check its name: GET /v1/topics/{topic}/groups lists them all.",
    "unknown_shard": "Name one exactly as GET /v1/topics/{topic} lists it, such as -80; or none, for all of them.",
    "topic_exists": "Use another name, or change the one that is there: PATCH /v1/topics/{topic}.",
    "schedule_exists": "Use another name, or change the one that is there: PUT /v1/schedules/{schedule}.",
    "topic_in_use": "End its subscriptions first; GET /v1/topics/{topic}/groups shows how many there are.",
    "group_in_use": "Stop its subscribers first; GET /v1/topics/{topic}/groups shows how many there are.",
    "bad_topic_settings": "Correct the setting that the message names; GET /v1/topics/{topic} shows them all.",
    "unknown_topic": "Check its name: GET /v1/topics lists them all.",
    "send_uncertain": "Send it again with the same key (or Idempotency-Key): it is not stored twice.",
}


class FieldError(msgspec.Struct, frozen=True):
    """One field that is wrong."""

    pointer: str
    """A JSON pointer into the body; of a query parameter, its name with a question mark before it."""
    detail: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    type: str
    title: str
    """Of its type."""
    status: int
    detail: str
    code: str
    """The name of the error, as clients in Python have it."""
    retryable: bool = msgspec.field(default=False)
    instance: str = ""
    errors: list[FieldError] = []


class Refused(Exception):
    """A request that HTTP itself, or its form, has something against."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = [] if pointer is None else [FieldError(pointer, detail)]
        self.headers = dict(headers or {})


def title_of(code: str) -> str:
    """The problem's type in a few words: the same for all problems of that type, as RFC 9457 has it.

    >>> title_of("unknown_topic")
    'Unknown topic'
    """
    return code.replace("_", " ").capitalize()


def phrase_of(status: int) -> str:
    """What an HTTP status means, in two or three words."""
    return _TITLES.get(status) or HTTPStatus(status).phrase


def status_of(error: TickwheelError) -> int:
    """The HTTP status of an error; 500 for one that no request can cause."""
    return _STATUS_OF_CODE.get(error.code, 400 if isinstance(error, ValueError) else 500)


def detail_of(error: TickwheelError) -> str:
    """What happened, and what to do."""
    return error.told(_ADVICE.get(error.code, error.advice))


def problem_of(error: TickwheelError | Refused) -> Problem:
    """What to answer for an error."""
    status = error.status if isinstance(error, Refused) else status_of(error)
    return Problem(
        f"urn:tickwheel:error:{error.code}",
        title_of(error.code),
        status,
        error.detail if isinstance(error, Refused) else detail_of(error),
        error.code,
        retryable=status in _RETRYABLE if isinstance(error, Refused) else error.retryable,
        errors=error.errors if isinstance(error, Refused) else [],
    )


def headers_of(problem: Problem) -> dict[str, str]:
    """The headers that belong to its status."""
    if problem.status == 401:
        return {"WWW-Authenticate": 'Bearer realm="tickwheel"'}
    if problem.status in (429, 503):
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


def encode(problem: Problem) -> bytes:
    """As it is sent; ``retryable`` is always said."""
    fields = {
        name: value for name, value in msgspec.structs.asdict(problem).items() if value or name == "retryable"
    }
    return msgspec.json.encode(fields) + b"\n"


def answer_to(error: TickwheelError | Refused, instance: str = "") -> Response:
    """The answer to a request that failed."""
    problem = msgspec.structs.replace(problem_of(error), instance=instance)
    headers = headers_of(problem) | (error.headers if isinstance(error, Refused) else {})
    return Response(encode(problem), problem.status, headers, MEDIA_TYPE)
