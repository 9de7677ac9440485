"""How subscriptions begin and end: who counts as a reader of a group, and what becomes of the messages of one that
leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from tickwheel.protocol.bodies.requests import encode_body
from tickwheel.protocol.bodies.settling import LeaseTime
from tickwheel.protocol.frames import HEADER_BYTES, FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker import logs
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.probing import Probing
from tickwheel_broker.delivery.takers import Fetching, Subscription, Taker
from tickwheel_broker.errors import advice_for
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.rest import Rest
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Groups, Holders
from timerlog.engine.settle import Settle
from timerlog.errors import DiskFull, UnknownGroup

RELEASE_STEP = 1_024
"""As many messages are given back at once; each may become a dead letter."""

_log = logs.get_logger("core")


class Subscriptions:
    """The subscriptions of all connections, from SUBSCRIBE to their end."""

    def __init__(
        self,
        *,
        groups: Groups,
        holders: Holders,
        leases: Deliver,
        settle: Settle,
        clock: Clock,
        commit: GroupCommit,
        delivery: Delivery,
        readers: Readers,
        rest: Rest,
    ) -> None:
        self._groups = groups
        self._holders = holders
        self._leases = leases
        self._settle = settle
        self._clock = clock
        self._commit = commit
        self._delivery = delivery
        self._readers = readers
        self._rest = rest
        self.held = 0
        """How many there are, also those that are not delivered to yet."""
        self._lost_still: set[int] = set()
        """Numbers of subscribers that stood still when their connections were lost, until others have them."""

    def begin(
        self,
        *,
        number: int,
        group_id: int,
        credit: int,
        batch: int,
        outgoing: Outgoing,
        pulse: Pulse,
        tells_attempts: bool = False,
    ) -> Subscription:
        """There is one more; it is not delivered to before `start`."""
        subscription = Subscription(
            number=number,
            group_id=group_id,
            group_ids=self._groups.parts_of(group_id),
            holder=self._acquire(group_id),
            credit=credit,
            batch=batch,
            outgoing=outgoing,
            pulse=pulse,
            tells_attempts=tells_attempts,
        )
        self.held += 1
        self._readers.joined(group_id)
        return subscription

    def _acquire(self, group_id: int) -> int:
        holder = self._holders.acquire(group_id)
        self._lost_still.discard(holder)
        return holder

    def start(self, subscription: Subscription) -> None:
        """Its client knows of it: deliver to it, unless it is about to leave."""
        if not subscription.is_leaving:
            self.tell_of_leases([subscription])
            self._delivery.add(subscription)

    def ack_wait_ms(self, group_id: int) -> int:
        """For how long a message of a group is leased."""
        return self._leases.ack_wait_ms(group_id)

    def lapsed(self, holders: Iterable[int]) -> None:
        """Leases under these numbers have ended: see `Pulse`."""
        for holder in holders:
            subscription = self._delivery.holder_of(holder)
            if subscription is not None:
                subscription.pulse.lapsed()

    def stands_still(self, holder: int) -> bool:
        """Whether nobody can have seen what is leased under a number, and was not, as its subscriber stands still."""
        subscription = self._delivery.holder_of(holder)
        if subscription is None:
            return holder in self._lost_still
        return subscription.pulse.stands_still(self.ack_wait_ms(subscription.group_id) / 1_000)

    def outstanding(self, subscription: Subscription) -> int:
        """How many messages a subscription holds."""
        return self._holders.outstanding(subscription.holder)

    def give_back(self, subscription: Subscription) -> int:
        """End a subscription and give its messages to others at once; how many there were."""
        self._forget(subscription)
        released = self._take_back(subscription)
        try:
            released += self._settle.release_holder(subscription.holder, self._clock.now_ms())
        except DiskFull as error:
            _tell_of_kept(subscription, error)
        return released

    def give_back_in_steps(self, subscription: Subscription) -> Callable[[], Awaitable[int]]:
        """Like `give_back`, for so many messages that others should have their turn meanwhile: at once nothing more is
        delivered to the subscription; what is returned gives its messages back."""
        self._forget(subscription)
        holder, released = subscription.holder, self._take_back(subscription)

        async def work() -> int:
            nonlocal released
            try:
                while some := self._settle.release_some(holder, self._clock.now_ms(), RELEASE_STEP):
                    released += some
                    await self._rest()
            except DiskFull as error:
                _tell_of_kept(subscription, error)
            finally:
                self._holders.drop(holder)
            return released

        return work

    def lose(self, subscription: Subscription) -> None:
        """The connection is gone, also because the broker stops: what the subscriber holds stays leased, because it may
        still be at work. What was to be sent to it, and waited for the disk, goes to others at once."""
        is_still = self.stands_still(subscription.holder)
        self._forget(subscription)
        self._take_back(subscription)
        if is_still:
            self._lost_still.add(subscription.holder)
        self._holders.drop(subscription.holder)

    def return_unseen(self, subscription: Subscription, ids: Sequence[int], epochs: Sequence[int]) -> int:
        """Deliver nothing more to a subscription that is about to leave, and take back what it has not looked at; how
        many messages."""
        subscription.is_leaving = True
        self._delivery.remove(subscription)
        returned = self._take_back(subscription)
        if ids:
            returned += self._settle.return_unseen(
                subscription.group_id, subscription.holder, ids, epochs, self._clock.now_ms()
            )
        return returned

    def tell_of_leases(self, subscriptions: Iterable[Subscription]) -> None:
        """Other settings may hold: a client that renews leases must know how long they last before it is given one."""
        for subscription in subscriptions:
            ack_wait_ms = self._leases.ack_wait_ms(subscription.group_id)
            if subscription.lease_told_ms not in (0, ack_wait_ms):
                subscription.lease_told_ms = ack_wait_ms
                body = LeaseTime(subscription.number, ack_wait_ms)
                self._commit.tell(subscription.outgoing, encode_frame(FrameType.LEASE, 0, encode_body(body)))

    def _take_back(self, subscription: Subscription) -> int:
        """What waits for the disk to be sent to a subscription that ends never leaves: it is no attempt, and goes to
        others. How many messages."""
        returned = 0
        for frame in subscription.take_held():
            delivery = decode_deliver(frame[HEADER_BYTES:])
            try:
                returned += self._settle.return_unseen(
                    subscription.group_id,
                    subscription.holder,
                    delivery.ids,
                    delivery.epochs,
                    self._clock.now_ms(),
                )
            except DiskFull as error:
                _tell_of_kept(subscription, error)
        return returned

    def _forget(self, subscription: Subscription) -> None:
        self._delivery.remove(subscription)
        self._readers.left(subscription.group_id)
        self.held -= 1


class Fetches:
    """The requests for messages of all connections, from FETCH to their end. While one waits it counts as a
    subscription."""

    def __init__(
        self,
        *,
        groups: Groups,
        holders: Holders,
        settle: Settle,
        clock: Clock,
        delivery: Delivery,
        readers: Readers,
        subscriptions: Subscriptions,
        probing: Probing,
    ) -> None:
        self._groups = groups
        self._holders = holders
        self._settle = settle
        self._clock = clock
        self._delivery = delivery
        self._readers = readers
        self._subscriptions = subscriptions
        self._probing = probing
        self._waiting: dict[Fetching, None] = {}

    def offer(self, fetching: Fetching) -> None:
        """Give it what is ready and nobody else waits for."""
        self._groups.read_once(fetching.group_id, self._clock.now_ms())
        self._delivery.offer(fetching)

    def begin_to_wait(self, fetching: Fetching) -> None:
        """Give it what gets ready, when it is its turn, until `stop`. Raises TooManySubscriptions."""
        fetching.holder = self._holders.acquire(fetching.group_id)
        fetching.since_ms = self._clock.now_ms()
        self._waiting[fetching] = None
        self._subscriptions.held += 1
        self._readers.joined(fetching.group_id)
        self._delivery.add(fetching)
        self._probing.watch(fetching)

    def is_waiting(self, group_id: int) -> bool:
        """Whether a request waits for messages of a group."""
        return any(fetching.group_id == group_id for fetching in self._waiting)

    def stop(self, fetching: Fetching) -> None:
        """It waits no longer; what it was given meanwhile is its own."""
        fetching.over.set()
        if fetching not in self._waiting:
            return
        del self._waiting[fetching]
        self._subscriptions.held -= 1
        self._delivery.remove(fetching)
        self._readers.left(fetching.group_id)
        self._holders.drop(fetching.holder)

    def stop_all(self) -> None:
        """Nothing more is handed out: all that wait are answered without messages."""
        for fetching in list(self._waiting):
            self.stop(fetching)

    def lose(self, fetching: Fetching) -> None:
        """The connection is gone: what surely never arrived goes to others at once. The rest stays leased."""
        ids, epochs = fetching.take_back()
        if not ids:
            return
        try:
            self._settle.give_back(fetching.group_id, ids, epochs, self._clock.now_ms())
        except UnknownGroup:
            return  # it was deleted meanwhile
        except DiskFull as error:
            _tell_of_kept(fetching, error)


def _tell_of_kept(taker: Taker, error: DiskFull) -> None:
    _log.error(
        "messages of a subscriber that left stay leased: the disk is full",
        group_id=taker.group_id,
        advice=advice_for(error),
    )
