"""The codes of RocketMQ's answers: those that this gateway says, by the names that RocketMQ has for them."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """In `Status.code`, inside of an answer of gRPC that is well."""

    OK = 20_000
    MULTIPLE_RESULTS = 30_000
    BAD_REQUEST = 40_000
    ILLEGAL_TOPIC = 40_002
    ILLEGAL_CONSUMER_GROUP = 40_003
    ILLEGAL_MESSAGE_TAG = 40_004
    ILLEGAL_MESSAGE_KEY = 40_005
    ILLEGAL_MESSAGE_GROUP = 40_006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40_007
    INVALID_TRANSACTION_ID = 40_008
    ILLEGAL_MESSAGE_ID = 40_009
    ILLEGAL_FILTER_EXPRESSION = 40_010
    ILLEGAL_INVISIBLE_TIME = 40_011
    ILLEGAL_DELIVERY_TIME = 40_012
    INVALID_RECEIPT_HANDLE = 40_013
    UNRECOGNIZED_CLIENT_TYPE = 40_015
    MESSAGE_CORRUPTED = 40_016
    CLIENT_ID_REQUIRED = 40_017
    UNAUTHORIZED = 40_100
    FORBIDDEN = 40_300
    NOT_FOUND = 40_400
    MESSAGE_NOT_FOUND = 40_401
    TOPIC_NOT_FOUND = 40_402
    MESSAGE_BODY_TOO_LARGE = 41_301
    MESSAGE_BODY_EMPTY = 41_302
    TOO_MANY_REQUESTS = 42_900
    MESSAGE_PROPERTIES_TOO_LARGE = 43_101
    INTERNAL_ERROR = 50_000
    INTERNAL_SERVER_ERROR = 50_001
    NOT_IMPLEMENTED = 50_100
    PROXY_TIMEOUT = 50_400


class Refused(Exception):
    """A request, or a part of it, is refused with a code and a text for people."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
