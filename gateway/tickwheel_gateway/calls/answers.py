"""What is said of a call: RocketMQ's codes for what Tickwheel has refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from tickwheel.errors import TickwheelError
from tickwheel_gateway.wire.codes import Code, Refused

_CODES: Final = {
    "bad_time": Code.ILLEGAL_DELIVERY_TIME,
    "bad_token": Code.UNAUTHORIZED,
    "body_too_large": Code.MESSAGE_BODY_TOO_LARGE,
    "client_closed": Code.INTERNAL_SERVER_ERROR,
    "disk_full": Code.INTERNAL_SERVER_ERROR,
    "forbidden": Code.FORBIDDEN,
    "frame_too_large": Code.MESSAGE_BODY_TOO_LARGE,
    "headers_too_large": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "key_too_long": Code.ILLEGAL_MESSAGE_ID,
    "login_required": Code.UNAUTHORIZED,
    "not_connected": Code.INTERNAL_SERVER_ERROR,
    "not_owner": Code.INTERNAL_SERVER_ERROR,
    "order_key_too_long": Code.ILLEGAL_MESSAGE_GROUP,
    "read_only": Code.INTERNAL_SERVER_ERROR,
    "request_timeout": Code.PROXY_TIMEOUT,
    "request_uncertain": Code.INTERNAL_SERVER_ERROR,
    "send_uncertain": Code.INTERNAL_SERVER_ERROR,
    "shutting_down": Code.INTERNAL_SERVER_ERROR,
    "token_expired": Code.UNAUTHORIZED,
    "token_revoked": Code.UNAUTHORIZED,
    "too_many_attempts": Code.TOO_MANY_REQUESTS,
    "too_many_connections": Code.TOO_MANY_REQUESTS,
    "too_many_groups": Code.TOO_MANY_REQUESTS,
    "too_many_subscriptions": Code.TOO_MANY_REQUESTS,
    "too_many_topics": Code.TOO_MANY_REQUESTS,
    "transaction_too_large": Code.MESSAGE_BODY_TOO_LARGE,
    "unknown_topic": Code.TOPIC_NOT_FOUND,
    "unknown_group": Code.TOPIC_NOT_FOUND,
}
"""By the codes of Tickwheel; others are an internal error."""

MOST_IN_A_REQUEST: Final = 4_096
"""Messages, or receipts: while they are worked off, other clients wait."""

_log = logging.getLogger("tickwheel.gateway.calls")


def check_count(count: int, of: str) -> None:
    """Raises Refused if a request has too many."""
    if count > MOST_IN_A_REQUEST:
        raise Refused(Code.BAD_REQUEST, f"{count} {of} are more than {MOST_IN_A_REQUEST} in a request")


def refusal(error: Exception, what: str) -> Refused:
    """What is answered when ``what``, a call, failed so. What is not expected is in the log."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, TickwheelError):
        code = _CODES.get(error.code)
        if code is None:
            _log.warning("%s is answered with an internal error: %s (%s)", what, error, error.code)
            code = Code.INTERNAL_ERROR
        return Refused(code, f"{error.code}: {error.message}")
    _log.error("%s has failed", what, exc_info=error)
    return Refused(Code.INTERNAL_ERROR, "internal error: see the log of the gateway")


def tell(status: Any, code: Code, text: str = "") -> None:
    """Writes a Status. A text of our own, where there is none, as RocketMQ has it."""
    status.code = code
    status.message = text or code.name


def tell_all(status: Any, codes: Iterable[int]) -> None:
    """Writes the Status of several: theirs if all have the same, and else that there are several."""
    found = set(codes)
    tell(status, Code(found.pop()) if len(found) == 1 else Code.MULTIPLE_RESULTS)
