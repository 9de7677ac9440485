# Made by gateway/native/wire/build.py from the headers.
from typing import Any

class _Lib:
    TW_SENT_IS_USUAL: int
    TW_SENT_TOPIC: int
    TW_SENT_ID: int
    TW_SENT_BODY: int
    TW_SENT_ORDER: int
    TW_SENT_KEY: int
    TW_SENT_HEADERS: int
    TW_SENT_DELIVER_AT: int
    TW_SENT_PRIORITY: int
    TW_SENT_NUMBERS: int
    TW_ACKED_IS_USUAL: int
    TW_ACKED_GROUP: int
    TW_ACKED_ID: int
    TW_ACKED_EPOCH: int
    TW_ACKED_MESSAGE: int
    TW_ACKED_HANDLE: int
    TW_ACKED_NUMBERS: int
    TW_GIVEN_IS_USUAL: int
    TW_GIVEN_AT: int
    TW_GIVEN_TAG: int
    TW_GIVEN_NUMBERS: int
    def tw_wire_sends(
        self, requests: Any, ends: Any, count: int, sender: Any, numbers: Any, out: Any, capacity: int, /
    ) -> int: ...
    def tw_wire_stored(
        self,
        requests: Any,
        numbers: Any,
        ids: Any,
        count: int,
        now_ms: int,
        out: Any,
        capacity: int,
        ends: Any,
        /,
    ) -> int: ...
    def tw_wire_acks(
        self, requests: Any, ends: Any, count: int, max_id: int, now_ms: int, numbers: Any, /
    ) -> None: ...
    def tw_wire_acked(
        self, requests: Any, numbers: Any, count: int, out: Any, capacity: int, ends: Any, /
    ) -> int: ...
    def tw_wire_given(
        self,
        payload: Any,
        bytes: int,
        attempts: Any,
        count: int,
        receiver: Any,
        numbers: Any,
        out: Any,
        capacity: int,
        /,
    ) -> int: ...

ffi: Any
lib: _Lib
