"""Cancels all messages of a task: the first, its retries, and what was sent again under its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from tickwheel.client.client import Client
from tickwheel.client.results import CancelResult
from tickwheel.errors import Forbidden, UnknownTopic
from tickwheel.protocol.headers import readable_headers
from tickwheel.protocol.message_states import NOT_DONE
from tickwheel.sharing.copy_keys import answer_for_all, copy_keys

TASK_ID: Final = "taskiq_id"
"""The header with the id of the task."""
SLOT: Final = "tickwheel-schedule"
"""The header that the broker gives to messages of its schedules: name and time."""

REPEATS_ASKED: Final = 32
"""How many retries of a task are asked for by their keys."""
_PAGE: Final = 1_000


def repeat_key(name: str, repeats: int) -> str:
    """The key of a task that was sent so often before under one name: its id, or its label ``key``."""
    return f"{name}:{repeats}" if repeats else name


def task_id_of(headers: Mapping[str, Any], message_id: int) -> str:
    """The id of the task of a message; empty: it has none. A schedule has one body for all its messages: the task of
    each slot has an id of its own, the same at a redelivery."""
    if headers.get(TASK_ID):
        return str(headers[TASK_ID])
    slot = headers.get(SLOT)
    return "" if slot is None else uuid5(NAMESPACE_URL, f"tickwheel:{slot}/{message_id}").hex


class Cancelling:
    """See the module; in one topic."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic

    async def cancel(self, name: str) -> CancelResult:
        """``name``: the id of a task, or its label ``key``. After CANCELLED no message of it is delivered again. Raises
        Forbidden, TickwheelError."""
        copies = copy_keys(name)
        keys = [*(repeat_key(name, repeats) for repeats in range(REPEATS_ASKED)), *copies]
        results = await self._client.cancel(self._topic, keys=keys)
        has_copies = any(result is not CancelResult.NOT_FOUND for result in results[-len(copies) :])
        ids: list[int] = []
        if has_copies or CancelResult.CANCELLED not in results:
            try:
                ids = [message_id async for message_id in self._search(name)]
            except Forbidden:  # what has the keys of the id was asked for by them
                if has_copies:
                    raise
        by_id = await self._client.cancel(ids=ids) if ids else []
        if CancelResult.CANCELLED in (*results, *by_id):
            await self._stop_delivered(keys, results, ids, by_id)
        return answer_for_all([*results, *by_id])

    async def _stop_delivered(
        self,
        keys: Sequence[str],
        by_key: Sequence[CancelResult],
        ids: Sequence[int],
        by_id: Sequence[CancelResult],
    ) -> None:
        """What a worker has is not delivered again."""
        given_keys = [key for key, result in zip(keys, by_key, strict=True) if _is_delivered(result)]
        given_ids = [one for one, result in zip(ids, by_id, strict=True) if _is_delivered(result)]
        if given_keys:
            await self._client.cancel(self._topic, keys=given_keys, stop=True)
        if given_ids:
            await self._client.cancel(ids=given_ids, stop=True)

    async def _search(self, name: str) -> AsyncIterator[int]:
        """The ids of all messages of a task that are not done."""
        last = 0
        while True:
            page = []
            with suppress(UnknownTopic):  # nothing was ever sent
                page = await self._client.browse(
                    self._topic, after_id=last, limit=_PAGE, max_body_bytes=0, states=NOT_DONE
                )
            for message in page:
                if task_id_of(readable_headers(message) or {}, message.id) == name or _is_repeat(
                    message.key, name
                ):
                    yield message.id
            if not page:
                return
            last = page[-1].id


def _is_delivered(result: CancelResult) -> bool:
    return result is CancelResult.ALREADY_DELIVERED


def _is_repeat(key: str, name: str) -> bool:
    before, _, repeats = key.rpartition(":")
    return key == name or (before == name and repeats.isdecimal())
