"""The one table of requests: who carries each out, what it takes to be allowed to ask, whether it is written down.

A request that is not in it is refused. The bulk traffic, SEND and ACK, never comes here. Every answer waits until what
it tells of (a topic, a cancellation, a figure) is on disk, as sends do. Which requests have an identity, so that a
repetition gets the answer that it got, `tickwheel.protocol.identity` says to clients as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from tickwheel.protocol.bodies.admin import (
    Browse,
    Decide,
    DeleteTopic,
    Drop,
    GetTopic,
    Prepare,
    Purge,
    ReplayDead,
    SetTopic,
)
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.groups import CreateGroup, DeleteGroup, GetGroups, GetMessages, SeekGroup
from tickwheel.protocol.bodies.requests import (
    Cancel,
    GetStats,
    GetTopics,
    GetWheel,
    OpenTopic,
    Ping,
    Query,
    Reschedule,
    SetCredit,
    Subscribe,
    Unsubscribe,
)
from tickwheel.protocol.bodies.schedules import DeleteSchedule, GetSchedules, SetSchedule, TriggerSchedule
from tickwheel.protocol.bodies.settling import Change, Extend, Nack, Redeliver, Return, Transaction
from tickwheel.protocol.errors import Forbidden
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel_broker.requests.bulk import BulkRequests
from tickwheel_broker.requests.caller import Caller, Handler
from tickwheel_broker.requests.changes import ChangeRequests
from tickwheel_broker.requests.figures import FigureRequests
from tickwheel_broker.requests.groups import GroupRequests
from tickwheel_broker.requests.letters import LetterRequests
from tickwheel_broker.requests.messages import MessageRequests
from tickwheel_broker.requests.prepared import PreparedRequests
from tickwheel_broker.requests.remembered import Remembered
from tickwheel_broker.requests.schedules import ScheduleRequests
from tickwheel_broker.requests.space import SpaceRequests
from tickwheel_broker.requests.subscriptions import SubscriptionRequests
from tickwheel_broker.requests.topics import TopicRequests
from tickwheel_broker.security import rights as may
from tickwheel_broker.security.rights import ADMIN, CONSUME, PUBLISH, QUERY, Judge, Rights

R = TypeVar("R", bound=Request)


class Rule(NamedTuple):
    """What holds for one type of request."""

    handle: Handler
    judge: Judge
    """Asked first, of those who may not do everything."""
    is_audited: bool = False
    """What changes more than messages is written down when it was done."""


Table = Mapping[type[Request], Rule]


class Requests:
    """Answers the requests of all connections."""

    def __init__(self, table: Table, remembered: Remembered) -> None:
        self.table = table
        self._remembered = remembered

    def answer(
        self, caller: Caller, correlation: int, request: Request, identity: RequestIdentity | None = None
    ) -> None:
        """Carry out one request, or answer it again. Raises TickwheelError or StoreError if it is refused."""
        if caller.rights is not None:
            request = self.admit(caller.rights, request)
        rule = self.table[type(request)]
        if identity is None:
            rule.handle(caller, correlation, request)
        elif not self._remembered.carry_out(caller, correlation, request, identity, rule.handle):
            return
        if rule.is_audited:
            caller.tell_of(request)

    def admit(self, rights: Rights, request: R) -> R:
        """The request, as far as it is allowed. Raises Forbidden, UnknownSchedule."""
        rule = self.table.get(type(request))
        if rule is None:
            raise Forbidden(f"{type(request).__name__} is allowed to nobody.")
        replaced = rule.judge(rights, request)
        if replaced is None:
            return request
        assert isinstance(replaced, type(request)), "a judge leaves out parts, and no more"
        return replaced


def table_of(
    *,
    topics: TopicRequests,
    subscriptions: SubscriptionRequests,
    changes: ChangeRequests,
    messages: MessageRequests,
    letters: LetterRequests,
    prepared: PreparedRequests,
    groups: GroupRequests,
    schedules: ScheduleRequests,
    figures: FigureRequests,
    space: SpaceRequests,
    bulk: BulkRequests,
) -> Table:
    """Each request once."""
    return {
        Ping: Rule(_ping, may.free),
        OpenTopic: Rule(topics.open, may.of_topic(PUBLISH)),
        SetTopic: Rule(topics.set, may.of_topic(ADMIN), is_audited=True),
        GetTopic: Rule(topics.get, may.visible_topic),
        DeleteTopic: Rule(topics.delete, may.of_topic(ADMIN), is_audited=True),
        Subscribe: Rule(subscriptions.subscribe, may.of_topic(CONSUME)),
        Unsubscribe: Rule(subscriptions.unsubscribe, may.free),  # of this connection
        Return: Rule(subscriptions.give_back, may.free),
        SetCredit: Rule(subscriptions.set_credit, may.free),  # within max_credit
        Cancel: Rule(changes.cancel, may.of_targets(PUBLISH)),
        Reschedule: Rule(changes.reschedule, may.of_targets(PUBLISH)),
        Redeliver: Rule(changes.redeliver, may.of_targets(CONSUME)),
        Nack: Rule(changes.nack, may.of_group),
        Extend: Rule(changes.extend, may.of_group),
        Change: Rule(changes.change, may.of_change),
        Transaction: Rule(changes.transaction, may.of_transaction),
        Browse: Rule(messages.browse, may.of_topic(QUERY)),
        GetMessages: Rule(messages.get, may.of_targets(QUERY)),
        ReplayDead: Rule(letters.replay, may.of_topic(CONSUME), is_audited=True),
        Prepare: Rule(prepared.prepare, may.of_topic(PUBLISH)),
        Decide: Rule(prepared.decide, may.of_decisions),
        GetGroups: Rule(groups.show, may.visible_groups),
        CreateGroup: Rule(groups.create, may.of_topic(CONSUME)),
        SeekGroup: Rule(groups.seek, may.of_topic(CONSUME), is_audited=True),
        DeleteGroup: Rule(groups.delete, may.of_topic(ADMIN), is_audited=True),
        GetSchedules: Rule(schedules.show, may.visible_schedules),
        SetSchedule: Rule(schedules.set, may.new_schedule, is_audited=True),
        DeleteSchedule: Rule(schedules.delete, may.of_schedule, is_audited=True),
        TriggerSchedule: Rule(schedules.trigger, may.of_schedule),
        GetStats: Rule(figures.stats, may.everywhere(QUERY)),
        GetTopics: Rule(figures.topics, may.free),  # shows those that it may know of
        GetWheel: Rule(figures.wheel, may.everywhere(QUERY)),
        Query: Rule(figures.query, may.everywhere(QUERY)),
        Purge: Rule(space.purge, may.everywhere(ADMIN), is_audited=True),
        Drop: Rule(space.drop, may.everywhere(ADMIN), is_audited=True),
        PlanJob: Rule(bulk.plan, may.everywhere(PUBLISH)),
        ReserveIds: Rule(bulk.reserve_ids, may.everywhere(PUBLISH)),
        AdoptJob: Rule(bulk.adopt, may.everywhere(PUBLISH), is_audited=True),
    }


def _ping(caller: Caller, correlation: int, request: Ping) -> None:
    caller.outgoing.put(encode_frame(FrameType.PONG, correlation))
