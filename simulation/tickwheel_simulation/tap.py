"""The oracle is told of messages when they are leased, by the broker's clock, and again when they leave the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import trio

from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import Batch
from tickwheel.protocol.bodies.requests import Unsubscribe, UnsubscribeOk
from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel.protocol.limits import PREPARED_SUFFIX, TESTS_SUFFIX
from tickwheel.protocol.messages import Delivery, decode_deliver, decode_fetch_ok
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.subscriptions import SubscriptionRequests
from tickwheel_simulation.claims import Claims
from tickwheel_simulation.network import Connection
from tickwheel_simulation.oracle import Frame, Given, Lease, Violation
from tickwheel_simulation.scene import RESTORED, Scene
from timerlog.engine.deliver import AsAnswer
from timerlog.names import DEAD_HEADER as STORY
from timerlog.store import Store

_STILL_AT = 0.5
"""After so much of a lease the broker takes who is silent for standing still."""
_LOOKS_S = 2.0
"""But not at once."""
_ELSEWHERE = (PREPARED_SUFFIX, TESTS_SUFFIX, RESTORED)
"""What these messages must be is known to those who ask for them."""


def tap(
    store: Store,
    scene: Scene,
    claims: Claims,
    life: int,
    clock_is_behind_ms: int,
    is_dead: Callable[[], bool],
) -> None:
    """From now on the oracle sees what the store gives out, and who gives it back. `clock_is_behind_ms`: the broker's,
    against that of the machine whose clock is furthest."""
    fetch = store.deliver.fetch

    def tapped_fetch(
        group_id: int, holder: int, *limits: int, asked: AsAnswer | None = None, tells_attempts: bool = False
    ) -> Any:
        now_ms = limits[-1]
        frame = fetch(group_id, holder, *limits, asked=asked, tells_attempts=tells_attempts)
        if frame and not is_dead():
            group = store.tables.groups[group_id].record
            topic = store.tables.topics[group.topic_id].record.name
            if scene.oracle.is_replaced(life):
                scene.given[id(frame)] = frame, None
                return frame
            if topic.endswith(_ELSEWHERE):
                scene.given[id(frame)] = frame, []
                return frame
            lease_ms = None if asked is None else asked.lease_ms
            scene.longest_lease_ms = max(scene.longest_lease_ms, lease_ms or 0)
            if lease_ms is not None and not scene.is_surely_kept(lease_ms):
                lease_ms = 0
            together = Frame(
                number=scene.oracle.leases + 1,
                topic=topic,
                group=group.name,
                holder=(life, holder),
                now_ms=now_ms,
                latest_ms=now_ms + clock_is_behind_ms,
                ordered_batch=1 if asked is None else asked.ordered_batch,
                lease_ms=lease_ms,
            )
            payload = frame[HEADER_BYTES:]
            if asked is None:
                delivery, attempts = decode_deliver(payload), None
            else:
                fetched = decode_fetch_ok(payload)
                delivery, attempts = fetched.delivery, fetched.attempts
            try:
                scene.given[id(frame)] = frame, _tell(scene, claims, delivery, attempts, together)
            except Violation as violation:
                scene.violation = scene.violation or violation
                raise
        return frame

    deliver: Any = store.deliver
    deliver.fetch = tapped_fetch
    _tap_settling(store, scene)


def _tap_settling(store: Store, scene: Scene) -> None:
    settle: Any = store.settle
    return_unseen, give_back, nack = store.settle.return_unseen, store.settle.give_back, store.settle.nack

    def tapped_return(
        group_id: int, holder: int, ids: Sequence[int], epochs: Sequence[int], now_ms: int
    ) -> int:
        scene.oracle.ids_may_come_again(ids)
        return return_unseen(group_id, holder, ids, epochs, now_ms)

    def is_of_others(group_id: int) -> bool:
        if scene.others is None or group_id not in store.tables.groups:
            return False
        topic_id = store.tables.groups[group_id].record.topic_id
        return store.tables.topics[topic_id].record.name in scene.others.groups

    def tapped_nack(group_id: int, ids: Sequence[int], *args: Any, **options: Any) -> Any:
        if is_of_others(group_id):  # those of other consumers say so themselves
            scene.oracle.ids_may_come_again(ids)
        return nack(group_id, ids, *args, **options)

    def tapped_give_back(group_id: int, ids: Sequence[int], epochs: Sequence[int], now_ms: int) -> Any:
        scene.oracle.ids_may_come_again(ids)
        return give_back(group_id, ids, epochs, now_ms)

    settle.return_unseen, settle.give_back = tapped_return, tapped_give_back
    settle.nack = tapped_nack


Left: TypeAlias = Callable[[SubscriptionRequests, Unsubscribe, Asked], UnsubscribeOk | Work]


def tapped_unsubscribe(unsubscribe: Left, scene: Scene, life: Callable[[], int]) -> Left:
    """`SubscriptionRequests.unsubscribe`, which also tells the oracle who leaves. Only then may the broker give back
    what somebody holds: what it does so by itself, at its own end for instance, is not excused."""

    def tapped(requests: SubscriptionRequests, request: Unsubscribe, asked: Asked) -> UnsubscribeOk | Work:
        subscription = asked.caller.subscriptions.get(request.subscription)
        if subscription is not None:
            scene.trace("released", life(), subscription.holder)
            scene.oracle.released((life(), subscription.holder))
        return unsubscribe(requests, request, asked)

    return tapped


def tapped_queue(
    queue: Callable[[Outgoing, bytes], None], scene: Scene, is_dead: Callable[[], bool]
) -> Callable[[Outgoing, bytes], None]:
    """`Outgoing.queue`, which also tells the oracle which messages leave the broker."""

    def tapped(outgoing: Outgoing, frames: bytes) -> None:
        _, given = scene.given.pop(id(frames), (b"", ()))
        if not is_dead():
            if given is None:
                raise Violation("a node gives out what it leased after another one had replaced it")
            for one in given:
                scene.oracle.left(one)
            if given:
                _check_still(outgoing, _LOOKS_S + _STILL_AT * scene.longest_lease_ms / 1_000)
        queue(outgoing, frames)

    return tapped


def _check_still(outgoing: Outgoing, most_s: float) -> None:
    """Messages leave for a client, which may stand still. `most_s`: so soon after others the broker may not know."""
    connection = outgoing._transport
    assert isinstance(connection, Connection)
    if not connection.is_still:
        return
    if connection.unread_since_s is None:
        connection.unread_since_s = trio.current_time()
    unread_s = trio.current_time() - connection.unread_since_s
    if unread_s > most_s:
        raise Violation(
            f"{connection.peer} stands still and is given messages, {unread_s:.1f} s after others that it has not read"
        )


def _tell(
    scene: Scene, claims: Claims, delivery: Delivery, attempts: Sequence[int] | None, frame: Frame
) -> list[Given]:
    """`attempts`: of each message; None: they are not told."""
    queue: AckQueue | Any = None
    given = []
    batch = Batch(delivery, frame.topic, queue)
    others = scene.others
    for place, message in enumerate(batch):
        token = scene.token_of(message.body)
        scene.trace("lease", frame.topic, frame.group, token, message.id, message.epoch, frame.now_ms)
        if others is not None and others.is_dead_letter(frame.topic):
            others.dead_letter(frame.topic, token, message.id)
            continue
        story = message.headers.get(STORY)
        if story is None:
            lease = Lease(frame, token, message.id, message.epoch)
            sent = scene.oracle.messages.get(token)
            if sent is not None:
                claims.leased(lease, sent)
            given.append(scene.oracle.leased(lease))
            if others is not None and attempts is not None:
                others.leased(lease, attempts[place])
        else:
            given.append(scene.oracle.buried(token, story["group"], story["attempts"]))
    return given
