"""The stream: the messages that one subscriber gets."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable

import anyio

from tickwheel.client.checks import whole
from tickwheel.outbox.errors import OutboxError
from tickwheel.outbox.messages.delivered import Batch, Message, receipts_of
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.settings import MAX_BATCH_SIZE
from tickwheel.outbox.messages.statements import Receipt
from tickwheel.protocol.errors import ClientForked, TickwheelError


class Stream:
    """The messages that one subscriber gets. Iterating ends when the hub is closed."""

    def __init__(self, table: TableForm, has_room: Callable[[], None], batch_size: int | None) -> None:
        """``has_room`` is called when a batch was taken."""
        if batch_size is not None:
            batch_size = whole(batch_size, "batch_size", 1, MAX_BATCH_SIZE)
        self._table = table
        self._has_room = has_room
        self._batch_size = batch_size
        self._arrived = anyio.Event()
        self._waiting: deque[Batch] = deque()
        self._current: deque[Message] = deque()
        self._error: TickwheelError | None = None
        self._closed = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of the messages, ``id`` first."""
        return self._table.columns

    @property
    def batch_size(self) -> int:
        """The most messages that come at once."""
        return self._batch_size or self._table.settings.batch_size

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._current:
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._current.extend(batch)
        return self._current.popleft()

    def batches(self) -> AsyncIterator[Batch]:
        """The messages as they were claimed. Do not mix it with iterating over messages."""
        return _Batches(self)

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """The next message; None when none came within ``timeout`` seconds (None: no limit)."""
        if self._current:
            return self._current.popleft()
        batch = await self.receive_batch(timeout)
        if batch is None:
            return None
        self._current.extend(batch)
        return self._current.popleft()

    async def receive_batch(self, timeout: float | None = None) -> Batch | None:  # noqa: ASYNC109
        """The next batch; None when none came within ``timeout`` seconds, or when the hub was closed."""
        if isinstance(self._error, ClientForked):
            raise self._error.copy()
        with anyio.move_on_after(timeout):
            return await self.next_batch()
        return None

    async def next_batch(self) -> Batch | None:
        """The next batch; None when the hub was closed."""
        while not self._waiting:
            if self._error is not None:
                raise self._error.copy()
            if self._closed:
                return None
            if self._arrived.is_set():  # else another task waits for it already
                self._arrived = anyio.Event()
            await self._arrived.wait()
        batch = self._waiting.popleft()
        self._has_room()
        return batch

    # -- the hub's side --

    @property
    def wants(self) -> int:
        """How many messages it can be given now: a batch, once it has taken the one before."""
        return 0 if self._waiting or self._closed else self.batch_size

    def give(self, batch: Batch) -> None:
        """Hands over a batch."""
        self._waiting.append(batch)
        self._arrived.set()

    def forked(self, error: TickwheelError) -> None:
        """This process is a child of the one that has the hub."""
        self._closed, self._error = True, error
        self._current, self._waiting = deque(), deque()

    def close(self, error: OutboxError | None = None) -> list[Receipt]:
        """No more messages come. Returns the receipts of those that the program has not seen."""
        self._closed, self._error = True, self._error or error
        unseen = receipts_of([*self._current, *(message for batch in self._waiting for message in batch)])
        self._current.clear()
        self._waiting.clear()
        self._arrived.set()
        return unseen


class _Batches:
    """No generator: one that is left in the middle would have to be closed by hand."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._stream.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
