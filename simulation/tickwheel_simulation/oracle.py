"""What must hold, whatever happens. It is told what clients asked for and were answered, what the broker leases, and
which deliveries left it; it knows nothing of the engine. What nobody was answered may have happened or not, until one
of them is seen; a delivery that left has happened, whatever becomes of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tickwheel import EventsTail, MessageHistory
from tickwheel.stats import TopicStats

_Event: TypeAlias = tuple[str, str, int]
"""Of a message's history: its name, the group, the epoch."""


class Known(Enum):
    """What is known about something that may have happened."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Violation(Exception):
    """A promise was broken. A run ends with the first one."""


@dataclass(slots=True)
class Held:
    """What one group had of one message."""

    epoch: int = 0
    leases: int = 0
    until_ms: int = 0
    """No other consumer may get it before. 0: it may have been given back."""
    leased_at_ms: int = 0
    first: int = 0
    """How many leases there were when it was given for the first time: in a key, its place in the order."""
    frame: int = 0
    """With which others it was given last."""
    holder: tuple[int, int] = (0, 0)
    is_certain: bool = False
    """The last delivery has left the broker."""
    acked: Known = Known.NO
    acked_epoch: int = 0
    """0: that is not known."""
    tried_epoch: int = 0
    """The highest epoch that was acked, whether the ack counted or not."""
    is_dead: bool = False
    may_be_dead: bool = False
    """It was a dead letter, and perhaps a power loss has undone that."""
    was_redelivered: bool = False
    calls: int = 0
    """How often it was given back or asked for again."""
    was_given_up: bool = False
    """It may be a dead letter before its last attempt."""
    left: set[int] = field(default_factory=set)
    """The epochs of all deliveries that left a broker."""

    @property
    def is_done(self) -> bool:
        """It is not to be delivered any more, or that may be so: an ack was not answered."""
        return self.acked is not Known.NO or self.is_dead or self.may_be_dead


@dataclass(slots=True)
class Message:
    """One message, named by the token in its body."""

    token: str
    topic: str
    due_ms: int = 0
    latest_ms: int = 0
    """When it may be due at the latest, if it was given another time."""
    is_relative: bool = False
    key: str | None = None
    order_key: str | None = None
    size_bytes: int = 0
    stored: Known = Known.MAYBE
    is_waiting: bool = True  # for the answer
    id: int = 0
    cancelled: Known = Known.NO
    was_cancel_asked: bool = False
    is_first_cancel: bool = False
    """The cancel that waits for its answer is the first one."""
    is_stray: bool = False
    """A request for a change was not answered: it may still be carried out, also much later."""
    is_stopped: bool = False
    was_moved: bool = False
    was_given_before: bool = False
    """When another time was asked for, some group had had it."""
    accepted_ms: int = 0
    is_deleted: Known = Known.NO
    is_key_free: bool = False
    """Its key may be that of another one by now."""
    together: int = 0
    held: dict[str, Held] = field(default_factory=dict)

    def group(self, name: str) -> Held:
        """What a group had of it."""
        held = self.held.get(name)
        if held is None:
            held = self.held[name] = Held()
        return held

    @property
    def is_ever_leased(self) -> bool:
        """Whether some group was given it."""
        return any(held.leases for held in self.held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What the messages have in common that leave the broker together."""

    number: int
    topic: str
    group: str
    holder: tuple[int, int]
    now_ms: int
    """By the clock of the broker that gives them."""
    latest_ms: int
    """By the clock of the machine that is furthest: the same, where there is one machine."""
    ordered_batch: int
    """How many messages of an ordering key may be in it."""
    lease_ms: int | None
    """None: as the topic's settings have it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A message that leaves the broker for a subscriber."""

    frame: Frame
    token: str
    id: int
    epoch: int

    @property
    def topic(self) -> str:
        """That of its frame."""
        return self.frame.topic

    @property
    def group(self) -> str:
        """That of its frame."""
        return self.frame.group


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """One message of a delivery, which may still be in the broker."""

    message: Message
    held: Held
    epoch: int
    """0: it is a dead letter of the message."""


class Oracle:
    """All messages of a run. `groups` are those of each topic, which get all of its messages."""

    def __init__(
        self, groups: dict[str, tuple[str, ...]], ack_wait_ms: int, mortal: str, max_attempts: int
    ) -> None:
        """`mortal`: the topic whose messages become dead letters after `max_attempts`."""
        self.groups = groups
        self.messages: dict[str, Message] = {}
        self.leases = 0
        self._ids: dict[int, Message] = {}
        self._ack_wait_ms = ack_wait_ms
        self._mortal, self._max_attempts = mortal, max_attempts
        self._by_order: dict[tuple[str, str], list[Message]] = {}
        self._together: dict[int, list[Message]] = {}
        self._inside: dict[Given, None] = {}
        """What was leased and has not left the broker, in this order."""
        self._owner = 0
        """In a cluster: the broker that owns the log."""
        self.is_stale: Callable[[], bool] = lambda: False
        """Whether a broker that was replaced and has not read of it may have answered lately. It changes nothing any
        more, but what it says of the past may be old."""

    # -- sends --

    def sending(self, message: Message) -> Message:
        """A client begins to send it."""
        self.messages[message.token] = message
        if message.together:
            self._together.setdefault(message.together, []).append(message)
        return message

    def in_order(self, message: Message, order_key: str) -> None:
        """It is sent with an ordering key."""
        message.order_key = order_key
        self._by_order.setdefault((message.topic, order_key), []).append(message)

    def accepted(self, message: Message, message_id: int, highest_ms: int) -> None:
        """The broker said that it has it."""
        message.is_waiting = False
        if message.stored is Known.NO:
            raise Violation(f"{message.token} was refused, and then accepted as {message_id}")
        self._is_stored(message, message_id)
        message.accepted_ms = highest_ms

    def refused(self, message: Message) -> None:
        """The broker said that it does not have it."""
        message.is_waiting = False
        if message.stored is Known.YES:
            raise Violation(f"{message.token} was refused, but is stored as {message.id}")
        message.stored = Known.NO

    def decided(self, message: Message, known: Known) -> None:
        """A prepared message is committed, or rolled back; the one that is delivered has another id."""
        if message.stored is not Known.MAYBE and message.stored is not known:
            raise Violation(f"{message.token} was decided upon as {known}, after it was {message.stored}")
        message.stored, message.is_waiting = known, False

    def unanswered(self, message: Message) -> None:
        """Its send was not answered, and will not be."""
        message.is_waiting = False

    def _is_stored(self, message: Message, message_id: int) -> None:
        if message.id and message.id != message_id:
            raise Violation(f"{message.token} is stored twice: as {message.id} and as {message_id}")
        known = self._ids.setdefault(message_id, message)
        if known is not message:
            raise Violation(f"{known.token} and {message.token} have the same id {message_id}")
        message.id, message.stored = message_id, Known.YES
        for other in self._together.get(message.together, ()) if message.together else ():
            if other.stored is Known.NO:
                raise Violation(f"of one transaction {message.token} is stored and {other.token} is not")

    # -- leases --

    def leased(self, lease: Lease) -> Given:
        """A message is given to a subscriber; it leaves the broker later, or never."""
        self.leases += 1
        message = self.messages.get(lease.token)
        if message is None:
            raise Violation(f"{lease.token} came from {lease.topic}, and nobody sent it")
        if message.topic != lease.topic:
            raise Violation(f"{lease.token} was sent to {message.topic}, and came from {lease.topic}")
        if message.stored is Known.NO:
            raise Violation(f"{lease.token} was refused, and is delivered")
        self._is_stored(message, lease.id)
        if lease.frame.latest_ms < message.due_ms:
            raise Violation(f"{lease.token} is {message.due_ms - lease.frame.latest_ms} ms early")
        if message.is_deleted is Known.YES:
            raise Violation(f"{lease.token} is delivered after its topic was deleted")
        if message.cancelled is Known.YES:
            raise Violation(f"{lease.token} was cancelled, and is delivered to {lease.group}")
        message.cancelled = Known.NO  # if it was asked for, it was too late
        held = message.group(lease.group)
        self._check_holder(message, lease, held)
        if message.order_key is not None:
            self._check_order(message, lease)
        frame = lease.frame
        held.epoch, held.leases = lease.epoch, held.leases + 1
        held.first, held.frame = held.first or self.leases, frame.number
        held.until_ms = frame.now_ms + (self._ack_wait_ms if frame.lease_ms is None else frame.lease_ms)
        held.leased_at_ms, held.holder = frame.now_ms, frame.holder
        held.is_certain = held.was_redelivered = held.is_dead = held.may_be_dead = False
        return self._given(Given(message, held, lease.epoch))

    def _given(self, given: Given) -> Given:
        self._inside[given] = None
        return given

    def left(self, given: Given) -> None:
        """It is on its way to the subscriber: from now on nothing undoes it."""
        held = given.held
        if given.epoch:
            if given.epoch in held.left:
                raise Violation(f"{given.message.token} is given out twice with the epoch {given.epoch}")
            held.left.add(given.epoch)
        if self._inside.pop(given, False) is None and held.epoch == given.epoch:
            held.is_certain = True

    def _check_holder(self, message: Message, lease: Lease, held: Held) -> None:
        name = f"{lease.token} (epoch {lease.epoch}, group {lease.group})"
        if held.acked is Known.YES:
            raise Violation(f"{name} was acked at epoch {held.acked_epoch}, and comes again")
        if held.is_dead and not held.was_redelivered and not message.is_stray:
            raise Violation(f"{name} is a dead letter, and comes again")
        if lease.epoch <= held.epoch:
            raise Violation(f"{name} comes again without a higher epoch than {held.epoch}")
        if lease.frame.latest_ms < held.until_ms and not message.is_stray:
            left_ms = held.until_ms - lease.frame.latest_ms
            raise Violation(f"{name} has two holders: the lease of epoch {held.epoch} ends in {left_ms} ms")
        if held.tried_epoch < lease.epoch:
            held.acked = Known.NO  # an ack that was not answered did not count

    def _check_order(self, message: Message, lease: Lease) -> None:
        assert message.order_key is not None
        first, together = message.group(lease.group).first or self.leases, 0
        for other in self._by_order[message.topic, message.order_key]:
            if other is message or other.cancelled is not Known.NO or other.is_stopped or other.was_moved:
                continue
            had = other.held.get(lease.group)
            if had is not None and had.leases:
                if had.acked is not Known.NO or had.is_dead or not had.epoch:
                    continue
                is_with_it = had.frame == lease.frame.number
                together += is_with_it
                # Those of one frame come in their order; the first of them again when none of the others is out.
                is_later_and_back = (
                    had.first > first and not is_with_it and had.until_ms <= lease.frame.latest_ms
                )
                if not (is_later_and_back or (had.first < first and is_with_it)):
                    raise Violation(
                        f"{lease.token} overtakes {other.token}, which {lease.group} has not done"
                    )
                if together >= lease.frame.ordered_batch:
                    raise Violation(f"{lease.token} is one too many of its ordering key")
            elif self._reached_before(other, message):
                raise Violation(f"{lease.token} comes before {other.token} of the same ordering key")

    @staticmethod
    def _reached_before(other: Message, message: Message) -> bool:
        """Whether it was surely in the topic before."""
        is_ahead = other.stored is Known.YES and 0 < other.accepted_ms < other.due_ms
        is_exact = not other.is_relative and not message.was_moved
        return is_ahead and is_exact and (other.due_ms, other.id) < (message.due_ms, message.id)

    def released(self, holder: tuple[int, int]) -> None:
        """A subscriber left in order: what it had may go to others at once."""
        for message in self.messages.values():
            for held in message.held.values():
                if held.holder == holder:
                    held.until_ms = 0

    def may_come_again(self, message: Message, group: str | None = None) -> None:
        """It was given back, or it was asked for once more."""
        for name, held in message.held.items():
            if group is None or name == group:
                held.until_ms = 0
                held.was_redelivered = True
                held.calls += 1

    def ids_may_come_again(self, ids: Iterable[int]) -> None:
        """These were given back."""
        for message_id in ids:
            if message_id in self._ids:
                self.may_come_again(self._ids[message_id])

    def settings_changed(self, ack_wait_ms: int) -> None:
        """Leases may be as short as this from now on."""
        self._ack_wait_ms = min(self._ack_wait_ms, ack_wait_ms)

    # -- acks --

    def acking(self, message: Message, group: str, epoch: int) -> None:
        """A consumer acks what it was given."""
        held = message.group(group)
        held.tried_epoch = max(held.tried_epoch, epoch)
        if held.acked is Known.NO:
            held.acked = Known.MAYBE

    def acked(self, message: Message, group: str, epoch: int) -> None:
        """The broker said that an ack counts."""
        held = message.group(group)
        if epoch < held.epoch and message.topic != self._mortal:
            raise Violation(
                f"{message.token}: an ack of epoch {epoch} counted, but {group} has epoch {held.epoch}"
            )
        if held.acked is Known.YES and held.acked_epoch != epoch:
            raise Violation(
                f"{message.token}: two acks counted in {group}: of epoch {held.acked_epoch} and of {epoch}"
            )
        held.acked, held.acked_epoch = Known.YES, epoch

    def ack_answered(self, message: Message, group: str, epoch: int, result: str) -> None:
        """What the broker said to an ack that may be the second one, of this delivery or of another."""
        if result in ("acked", "already_acked"):
            self.acked(message, group, epoch)
        else:
            self.ack_refused(message, group, epoch, result)

    def ack_refused(self, message: Message, group: str, epoch: int, code: str) -> None:
        """The broker said that an ack does not count."""
        if self.is_stale():
            return
        held = message.group(group)
        is_over = held.is_dead or message.is_stopped or message.is_deleted is not Known.NO
        is_newest = epoch == held.epoch and held.is_certain and not held.was_redelivered
        is_over |= message.topic == self._mortal  # it may be a dead letter by now
        if code == "stale_receipt" and is_newest and not is_over and not message.is_stray:
            raise Violation(f"{message.token}: the ack of the newest epoch {epoch} is stale in {group}")
        if code in ("not_found", "never_delivered") and held.is_certain and not is_over:
            raise Violation(f"{message.token}: an ack of what {group} was given is refused as {code}")

    def buried(self, token: str, group: str, attempts: int) -> Given:
        """A dead letter is delivered."""
        message = self.messages.get(token)
        if message is None:
            raise Violation(f"a dead letter of {token}, which nobody sent")
        held = message.group(group)
        if held.acked is Known.YES:
            raise Violation(f"{token} was acked by {group}, and is a dead letter of it")
        if attempts < self._max_attempts and not held.was_given_up:
            raise Violation(f"{token} is a dead letter after {attempts} of {self._max_attempts} attempts")
        if held.calls:
            held.may_be_dead = True  # it was asked for again, perhaps after it had become this dead letter
        else:
            held.is_dead = True
        return self._given(Given(message, held, 0))

    def extending(self, message: Message, group: str, epoch: int, until_ms: int) -> None:
        """A consumer asks to keep it for so long, which may be shorter than before."""
        held = message.group(group)
        if held.epoch == epoch:
            held.until_ms = min(held.until_ms, until_ms)

    def extended(self, message: Message, group: str, epoch: int, until_ms: int, from_ms: int) -> None:
        """The broker said that the holder keeps it; the clock was not put back meanwhile."""
        held = message.group(group)
        if held.epoch == epoch and held.until_ms and held.leased_at_ms <= from_ms:
            held.until_ms = until_ms  # earlier or later: it counts from the request on

    # -- changes --

    def cancelling(self, message: Message) -> None:
        """A client asks for it to be cancelled."""
        message.is_first_cancel = not message.was_cancel_asked
        message.was_cancel_asked = True
        if message.cancelled is Known.NO and not message.is_ever_leased:
            message.cancelled = Known.MAYBE

    def cancel_answered(self, message: Message, result: str) -> None:
        """What the broker said."""
        certain = any(held.is_certain for held in message.held.values())
        if message.is_first_cancel:
            self._check_first_cancel(message, result)
        if result == "cancelled":
            if certain:
                raise Violation(f"{message.token} is cancelled, but was delivered before")
            message.cancelled = Known.YES
        elif result == "already_cancelled":
            if not message.was_cancel_asked:
                raise Violation(f"{message.token} is already cancelled, and nobody asked for that")
            message.cancelled = Known.YES
        elif result == "stopped":
            message.is_stopped = True
        else:
            self._not_changed(message, result)

    def _check_first_cancel(self, message: Message, result: str) -> None:
        """A request is carried out once, however often its answer is lost: it does not find what it did itself."""
        if self.is_stale():
            return
        if result == "already_cancelled":
            raise Violation(f"{message.token} is already cancelled, and nobody asked for that before")
        groups = self.groups.get(message.topic, ())
        is_there = message.stored is Known.YES and message.is_deleted is Known.NO and bool(groups)
        if result == "not_found" and is_there and not all(message.group(name).is_done for name in groups):
            raise Violation(f"{message.token} is accepted, and not_found by the first who cancels it")

    def nacking(self, message: Message, group: str, epoch: int) -> int:
        """A consumer gives it back. Returns how often that was done if it surely still has it; else -1."""
        held = message.group(group)
        surely = held.epoch == epoch and held.is_certain and not held.was_redelivered and not message.is_stray
        self.may_come_again(message, group)
        return held.calls if surely and message.topic != self._mortal else -1

    def giving_up(self, message: Message, group: str) -> None:
        """A consumer asks for a dead letter, and for no other delivery."""
        message.group(group).was_given_up = True

    def nack_answered(self, message: Message, group: str, epoch: int, calls: int, result: str) -> None:
        """What the broker said."""
        held = message.group(group)
        is_alone = (held.epoch, held.calls) == (epoch, calls) and not message.is_stray
        is_over = message.is_stopped or message.is_deleted is not Known.NO
        if result == "stale_receipt" and is_alone and not is_over and not self.is_stale():
            raise Violation(
                f"{message.token} is given back once by {group}, and its receipt {epoch} is stale"
            )

    def moving(self, message: Message, due_ms: int) -> None:
        """A client asks for another time."""
        message.was_moved = True
        message.was_given_before = any(held.is_certain for held in message.held.values())
        message.latest_ms = max(message.latest_ms, message.due_ms, due_ms)
        message.due_ms = min(message.due_ms, due_ms)

    def move_answered(self, message: Message, result: str, due_ms: int) -> None:
        """What the broker said."""
        if result == "rescheduled":
            if message.was_given_before:
                raise Violation(f"{message.token} is rescheduled, but was delivered before")
            if message.cancelled is Known.YES:
                raise Violation(f"{message.token} is rescheduled, but was cancelled before")
            if not message.is_stray and not message.is_ever_leased:
                message.due_ms = due_ms
        elif result == "already_cancelled":
            if not message.was_cancel_asked:
                raise Violation(f"{message.token} is already cancelled, and nobody asked for that")
            message.cancelled = Known.YES
        else:
            self._not_changed(message, result)

    def _not_changed(self, message: Message, result: str) -> None:
        if self.is_stale():
            return
        if result == "already_delivered" and not message.is_ever_leased:
            raise Violation(f"{message.token} is already delivered, but to nobody")
        if result == "already_acked" and message.topic != self._mortal:
            groups = self.groups.get(message.topic, ())
            open_groups = [name for name in groups if message.group(name).acked is Known.NO]
            if any(not message.group(name).is_dead for name in open_groups) and not message.is_stopped:
                raise Violation(f"{message.token} is already acked, but not by {open_groups}")
        if result in ("not_found", "expired") and message.stored is Known.YES and not self.is_done(message):
            raise Violation(f"{message.token} is accepted, and {result}")

    # -- what happens to machines --

    def took_over(self, life: int) -> None:
        """In a cluster: another broker owns the log. What has not left the one before may never have been."""
        undone = list(self._inside)
        self.ended()
        for held in (given.held for given in undone):
            if held.acked is Known.NO and held.tried_epoch and held.tried_epoch >= held.epoch:
                held.acked = Known.MAYBE  # what the one before leased after that may never have been
        self._owner = life

    def is_replaced(self, life: int) -> bool:
        """Whether this broker owns the log no more."""
        return self._owner not in (0, life)

    def ended(self) -> None:
        """The broker has ended, however: leases of what had not left it may never have been."""
        for given in reversed(self._inside):
            message, held = given.message, given.held
            if not given.epoch:
                held.is_dead, held.may_be_dead = False, True
            elif held.epoch == given.epoch:
                held.epoch, held.until_ms = given.epoch - 1, 0
                if message.was_cancel_asked and message.cancelled is Known.NO:
                    message.cancelled = Known.MAYBE
        self._inside.clear()

    def clock_went_back(self, by_ms: int, before_ms: int) -> None:
        """Leases end earlier, what was due stays due, and what is being sent may count from an earlier time."""
        for message in self.messages.values():
            if message.due_ms <= before_ms:
                message.due_ms = 0
            if message.is_waiting and message.is_relative:
                message.due_ms -= by_ms
            for held in message.held.values():
                held.until_ms = 0

    def topic_deleted(self, topic: str, known: Known) -> None:
        """A topic is being deleted, or the answer says that it is deleted."""
        for message in self.messages.values():
            if message.topic == topic and message.is_deleted is not Known.YES:
                message.is_deleted = known

    # -- the end --

    def nobody_waits(self) -> None:
        """All clients are gone."""
        for message in self.messages.values():
            message.is_waiting = False

    def settle(self) -> None:
        """Everything that was stored and not cancelled was delivered by now, so what is not known did not happen. Of a
        topic without groups nothing is delivered, and this is never known."""
        for message in self.messages.values():
            if message.stored is Known.MAYBE and self.groups.get(message.topic):
                message.stored = Known.NO
            if message.cancelled is Known.MAYBE and self.groups.get(message.topic):
                message.cancelled = Known.NO if message.is_ever_leased else Known.YES

    def is_done(self, message: Message) -> bool:
        """Whether nothing more has to happen with it."""
        if message.stored is not Known.YES or message.is_stopped or message.cancelled is not Known.NO:
            return True
        if message.is_deleted is not Known.NO:
            return True
        return all(message.group(name).is_done for name in self.groups.get(message.topic, ()))

    def open_messages(self) -> list[Message]:
        """What was accepted and is not done."""
        return [message for message in self.messages.values() if not self.is_done(message)]

    def check_together(self) -> None:
        """When all has settled: a transaction is whole or absent."""
        for messages in self._together.values():
            known = [message for message in messages if message.stored is not Known.MAYBE]
            stored = {message.token: message.stored is Known.YES for message in known}
            if len(set(stored.values())) > 1:
                raise Violation(f"a transaction is there in part: {stored}")


# -- the broker's figures: they lie between what is certain and what may be --


def figure_bounds(oracle: Oracle) -> dict[str, int]:
    """What the broker's counters reach at least."""
    return {name: low for name, (low, _) in _counted(oracle).items()}


def check_figures(oracle: Oracle, topics: Iterable[TopicStats], before: dict[str, int]) -> None:
    """The broker's counters against what is known now, and was known `before` it was asked."""
    counted = _counted(oracle)
    for topic in topics:
        figures = {f"{topic.name} messages": topic.messages, f"{topic.name} cancelled": topic.cancelled}
        figures |= {f"{topic.name} acked by {group.name}": group.acked for group in topic.groups}
        for name, figure in figures.items():
            low = 0 if oracle.is_stale() else before.get(name, 0)
            high = counted.get(name, (0, 1 << 60))[1]
            if not low <= figure <= high:
                raise Violation(f"{name}: the broker counts {figure}, right is {low} to {high}")


def _counted(oracle: Oracle) -> dict[str, tuple[int, int]]:
    """By the name of a figure: what it is at least, and at most."""
    counted: dict[str, tuple[int, int]] = {}

    def count(name: str, is_certain: bool, is_possible: bool) -> None:
        low, high = counted.get(name, (0, 0))
        counted[name] = (low + is_certain, high + is_possible)

    for message in oracle.messages.values():
        topic = message.topic
        if not oracle.groups[topic]:
            continue  # it comes and goes
        count(f"{topic} messages", message.stored is Known.YES, message.stored is not Known.NO)
        is_cancelled = message.cancelled is Known.YES and message.stored is Known.YES
        count(f"{topic} cancelled", is_cancelled, message.was_cancel_asked)
        for group in oracle.groups[topic]:
            held = message.held.get(group)
            is_acked = held is not None and held.acked is Known.YES
            count(f"{topic} acked by {group}", is_acked, held is not None and held.tried_epoch > 0)
    return counted


# -- what the log says of messages, when all has settled --


def told_of(oracle: Oracle) -> list[Message]:
    """Messages of which is known what happened to them."""
    return [
        message
        for message in oracle.messages.values()
        if message.stored is Known.YES and message.is_deleted is Known.NO and oracle.groups[message.topic]
    ]


def check_history(message: Message, history: MessageHistory | None) -> None:
    """What the log says of a message against what happened to it. What was purged is told no more."""
    if history is None:
        return
    name = f"the history of {message.token}"
    if (history.id, history.topic) != (message.id, message.topic) or set(history.missing) - {"purged"}:
        raise Violation(f"{name} is that of {history.id} of {history.topic}, without {history.missing}")
    happened = {(event.event, event.group, event.epoch) for event in history.events}
    named = {(event, group) for event, group, _ in happened}
    for group, held in message.held.items():
        told = sorted(epoch for event, of, epoch in happened if (event, of) == ("delivered", group))
        if len(told) > held.leases:
            raise Violation(f"{name} has deliveries to {group} with {told}, of {held.leases}")
        if held.acked is Known.NO and ("acked", group) in named:
            raise Violation(f"{name} has an ack of {group}, which it never gave")
        if history.is_complete:
            _check_whole(name, group, held, told, happened)
    if ("cancelled", "") in named and not message.was_cancel_asked:
        raise Violation(f"{name} has it cancelled, and nobody asked for that")
    if history.is_complete:
        if [event.event for event in history.events].count("sent") != 1 or history.events[0].event != "sent":
            raise Violation(f"{name} does not begin when it was sent")
        if message.cancelled is Known.YES and ("cancelled", "") not in named:
            raise Violation(f"{name} does not say that it was cancelled")


def _check_whole(name: str, group: str, held: Held, told: list[int], happened: set[_Event]) -> None:
    if missing := held.left - set(told):
        raise Violation(f"{name} lacks deliveries to {group}, with {sorted(missing)}")
    if held.acked is Known.YES and held.acked_epoch and ("acked", group, held.acked_epoch) not in happened:
        raise Violation(f"{name} lacks the ack of {group}, of {held.acked_epoch}")
    if held.is_dead and not any(event[:2] == ("dead", group) for event in happened):
        raise Violation(f"{name} does not say that {group} gave it up")


def check_events(message: Message, history: MessageHistory, tail: EventsTail) -> None:
    """What is told of a message among all that happened is what is told of it alone."""
    end = tail.next[0]
    alone = [
        (event.position, "released" if event.event == "extended" else event.event, event.group, event.epoch)
        for event in history.events
        if not event.computed and event.position < end
    ]
    among = [(one.position, one.event, one.group, one.epoch) for one in tail.events if one.id == message.id]
    if alone != among:
        raise Violation(f"the events of {message.token} are {alone}, and among all others {among}")
