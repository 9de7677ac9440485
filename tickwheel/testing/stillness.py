"""Whether a broker has done all that is to be done at this time: asked in its own loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio
import trio.testing

from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import ManualClock

WAIT_S: Final = 0.2
_PAUSE_S: Final = 0.000_2


async def is_still(broker: Broker, clock: ManualClock, groups: Iterable[tuple[str, str]]) -> bool:
    """Waits shortly until nothing moves in the broker any more: nothing is due that has not been handed out, nothing
    waits for the disk. Whether it came to that, and a request waits for messages of each of these (topic, group).
    """
    for _step in broker.readers.keep(clock.now_ms()):  # which it does once a second otherwise
        pass
    with trio.move_on_after(WAIT_S):
        log = broker.store.log
        while True:
            position = log.telling_position
            await broker.commit.wait_durable(position)
            await trio.testing.wait_all_tasks_blocked()
            if log.telling_position == position and not _moves(broker, clock):
                return all(_is_waited_for(broker, topic, group) for topic, group in groups)
            await trio.sleep(_PAUSE_S)
    return False


def _moves(broker: Broker, clock: ManualClock) -> bool:
    services = broker.services
    next_ms = clock.next_ms()
    return bool(
        (next_ms is not None and next_ms <= clock.now_ms())
        or broker.store.enqueue_get.pending
        or services.pending.batches
        or services.due.batches
        or services.ready.batches
        or broker.commit.waiting
    )


def _is_waited_for(broker: Broker, topic: str, group: str) -> bool:
    tables = broker.store.tables
    topic_id = tables.topic_ids.get(topic)
    group_id = None if topic_id is None else tables.topics[topic_id].groups.get(group)
    return group_id is not None and broker.fetches.is_waiting(group_id)
