"""A stream of messages: server-sent events, settled by other requests.

Repeated fetches carry it, each for no more than the client has credit for and has read: what waits for a slow reader
waits in the broker. As long as the stream is open the leases of what is not settled are renewed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tickwheel import ReceiptResult
from tickwheel.errors import TickwheelError
from tickwheel.protocol.receipts import Receipt
from tickwheel.sharing.returns import give_back
from tickwheel_web.consuming.shapes import LEASES, encoded_deliveries
from tickwheel_web.ending import OWN_PATIENCE, WRITE_S, while_there
from tickwheel_web.endpoints import Asked
from tickwheel_web.problems import Refused, encode, problem_of
from tickwheel_web.shapes import EVENTS, duration_of

HEARTBEAT: Final = timedelta(seconds=15)
MAX_HOLD_S: Final = 3_600.0
"""So long the lease of one delivery is renewed."""
_COMMENT: Final = b":\n\n"
_FETCHED_BYTES: Final = 256 * 1024
_AT_ONCE: Final = 50
"""So many deliveries are written before others go on, where nothing makes the writer wait."""
_RENEWED_AT: Final = 1 / 3
"""Of a lease."""
_ASK_AFTER_S: Final = 1.0
"""The broker is asked so soon what was settled elsewhere, then less and less often."""

_log = logging.getLogger("tickwheel.web")


async def stream_messages(asked: Asked) -> Response:
    """Messages as they become due, until somebody ends it."""
    lease = duration_of(asked.query.lease, "lease")
    assert lease is not None
    shortest, longest = LEASES
    if not shortest <= lease <= longest:
        raise Refused(
            400, "bad_argument", "The lease of a stream is 1s to 1h; it is renewed.", pointer="?lease"
        )
    if asked.request.method == "HEAD":
        return Response(media_type=EVENTS)
    with ExitStack() as held:
        held.enter_context(asked.shared.limits.streams.hold(asked.caller))
        await asked.client.fetch(asked.path("topic"), asked.path("group"), count=0)  # made, and allowed
        return _Stream(asked, lease, held.pop_all())


class _Stream(Response):
    """One stream. What fails is its last event."""

    def __init__(self, asked: Asked, lease: timedelta, held: ExitStack) -> None:
        super().__init__(media_type=EVENTS, headers={"X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        setattr(asked.request.state, OWN_PATIENCE, True)
        self._asked = asked
        self._client = asked.client
        self._topic, self._group = asked.path("topic"), asked.path("group")
        self._lease = lease
        self._held = held
        self._lease_s = lease.total_seconds()
        self._credit = asked.shared.credits.open(asked.query.credit)
        self._unseen: set[Receipt] = set()
        """Of what is outstanding: not written yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        with self._held, self._asked.shared.ending.ends() as until_end:
            try:
                async with while_there(receive):
                    await self._run(send)
            except (ClientDisconnect, OSError):
                return
            finally:
                await self._settle_rest(is_attempt=not until_end.cancel_called)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, send: Send) -> None:
        """Until it is cancelled, or the broker refuses to go on. Raises OSError when it is not read."""
        failed: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep)
            try:
                start = {"status": self.status_code, "headers": self.raw_headers}
                await self._send(send, {"type": "http.response.start", **start})
                await self._write(send, _COMMENT)
                while True:
                    await self._next(send)
            except (TickwheelError, OSError) as error:
                failed = error
            group.cancel_scope.cancel()
        if isinstance(failed, TickwheelError):
            await self._write(send, b"event: problem\n" + _data(encode(problem_of(failed))))
        elif failed is not None:
            raise failed

    async def _next(self, send: Send) -> None:
        """What there is next: messages, or that there are none."""
        if self._credit.room < 1:
            await self._wait_for_room(send)
            return
        fetched = await self._client.fetch(
            self._topic,
            self._group,
            count=self._credit.room,
            wait=HEARTBEAT,
            lease=self._lease,
            max_bytes=_FETCHED_BYTES,
        )
        pairs = zip(fetched.ids, fetched.epochs, strict=True)
        receipts = [Receipt(fetched.group_id, *pair) for pair in pairs]
        self._credit.take(receipts, anyio.current_time())
        self._unseen.update(receipts)
        deliveries = encoded_deliveries(fetched, self._group)
        for index, (receipt, data) in enumerate(zip(receipts, deliveries, strict=True), 1):
            if (
                receipt in self._credit.outstanding
            ):  # else its lease has ended, because the others were read slowly
                await self._write(send, b"id: %d\n" % receipt.id + _data(data))
            self._unseen.discard(receipt)
            if index % _AT_ONCE == 0:
                await checkpoint()
        if not receipts:
            await self._write(send, _COMMENT)

    async def _wait_for_room(self, send: Send) -> None:
        beat_at = anyio.current_time() + HEARTBEAT.total_seconds()
        pause_s = _ASK_AFTER_S
        while self._credit.room < 1:
            with anyio.move_on_after(pause_s):
                await self._credit.changed()
                return
            pause_s = min(2 * pause_s, self._lease_s * _RENEWED_AT)
            await self._renew()
            if anyio.current_time() >= beat_at:
                await self._write(send, _COMMENT)
                beat_at += HEARTBEAT.total_seconds()

    async def _write(self, send: Send, data: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        """Raises TimeoutError when nothing is read for too long."""
        with anyio.fail_after(max(WRITE_S, self._lease_s)):
            await send(message)

    # Leases --------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await anyio.sleep(self._lease_s * _RENEWED_AT)
            with suppress(TickwheelError):  # the next fetch says it, too
                await self._renew()

    async def _renew(self) -> None:
        """What is not renewed was settled elsewhere, or has been held for too long."""
        oldest = anyio.current_time() - MAX_HOLD_S
        outstanding = self._credit.outstanding
        self._credit.free([receipt for receipt, since in outstanding.items() if since < oldest])
        for group_id, receipts in _by_group(outstanding).items():
            results = await self._client.extend(group_id, _pairs(receipts), self._lease)
            self._credit.free(
                receipt
                for receipt, result in zip(receipts, results, strict=True)
                if result != ReceiptResult.EXTENDED
            )

    async def _settle_rest(self, *, is_attempt: bool) -> None:
        """What was written and not settled was an attempt, unless we are to blame; the rest was not looked at. When the
        broker cannot be asked, all come again at the end of their leases."""
        rest = self._credit.close()
        unseen = [receipt for receipt in rest if receipt in self._unseen or not is_attempt]
        seen = set(rest).difference(unseen)
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for group_id, receipts in _by_group(unseen).items():
                    returned = partial(self._client.give_back, group_id, _pairs(receipts))
                    group.start_soon(give_back, _log, len(receipts), self._topic, returned)
                for group_id, receipts in _by_group(seen).items():
                    nacked = partial(
                        self._client.nack, group_id, _pairs(receipts), timedelta(0), "the stream ended"
                    )
                    group.start_soon(give_back, _log, len(receipts), self._topic, nacked)


def _pairs(receipts: Iterable[Receipt]) -> list[tuple[int, int]]:
    return [(receipt.id, receipt.epoch) for receipt in receipts]


def _data(encoded: bytes) -> bytes:
    """An event. A body may have line breaks between its parts, where JSON allows them."""
    if b"\r" in encoded:
        encoded = encoded.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return b"data: " + encoded.replace(b"\n", b"\ndata: ") + b"\n\n"


def _by_group(receipts: Iterable[Receipt]) -> dict[int, list[Receipt]]:
    found: dict[int, list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        found[receipt.group_id].append(receipt)
    return found
