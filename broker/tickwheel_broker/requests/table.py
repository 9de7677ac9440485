"""The one table of requests: who carries each out, what it takes to be allowed to ask, whether it is written down.

A request that is not in it is refused. The bulk traffic, SEND and ACK, never comes here. Every answer waits until what
it tells of (a topic, a cancellation, a figure) is on disk, as sends do. Which requests have an identity, so that a
repetition gets the answer that it got, `tickwheel.protocol.identity` says to clients as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.endpoints import (
    DeleteEndpoint,
    EnableEndpoint,
    GetAttempts,
    GetEndpoints,
    SetEndpoint,
    TellEndpoints,
    TestEndpoint,
)
from tickwheel.protocol.bodies.fetching import EndFetch, Fetch
from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    DeleteGroup,
    GetGroups,
    GetHistory,
    GetMessages,
    SeekGroup,
    SetGroup,
)
from tickwheel.protocol.bodies.operations import Disconnect, GetAudit, GetClients, GetEvents, GetFigures
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
from tickwheel_broker.requests.answers import Answers, Asked, Handler
from tickwheel_broker.requests.bulk import BulkRequests
from tickwheel_broker.requests.caller import Caller, Work
from tickwheel_broker.requests.changes import ChangeRequests
from tickwheel_broker.requests.documents.endpoints import EndpointRequests
from tickwheel_broker.requests.documents.schedules import ScheduleRequests
from tickwheel_broker.requests.figures import FigureRequests
from tickwheel_broker.requests.groups import GroupRequests
from tickwheel_broker.requests.letters import LetterRequests
from tickwheel_broker.requests.messages import MessageRequests
from tickwheel_broker.requests.operations import OperationRequests
from tickwheel_broker.requests.prepared import PreparedRequests
from tickwheel_broker.requests.space import SpaceRequests
from tickwheel_broker.requests.subscriptions import FetchRequests, SubscriptionRequests
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
    """Carries out the requests of all connections."""

    def __init__(self, table: Table, answers: Answers, publish: Callable[[], None]) -> None:
        """`publish` tells of what the engine has changed."""
        self.table = table
        self.answers = answers
        self._publish = publish

    def answer(
        self, caller: Caller, correlation: int, request: Request, identity: RequestIdentity | None = None
    ) -> None:
        """Carry out one request, or answer it again. Raises TickwheelError or StoreError if it is refused."""
        if caller.rights is not None:
            request = self.admit(caller.rights, request)
        rule = self.table[type(request)]

        def act() -> None:
            with self._published():
                answer = rule.handle(request, Asked(caller, correlation, self.answers))
            if isinstance(answer, Answer | bytes):
                self.answers.when_durable(caller, correlation, request, answer)
            elif answer is not None:
                caller.answer_later(correlation, request, self._publishing(answer))

        if identity is None:
            act()
        elif not self.answers.remembered.carry_out(caller, correlation, request, identity, act):
            return
        if rule.is_audited:
            caller.tell_of(request)

    @contextmanager
    def _published(self) -> Iterator[None]:
        """Publishes at its end what changed inside, also when that raised."""
        try:
            yield
        finally:
            self._publish()

    def _publishing(self, work: Work) -> Work:
        async def publish() -> Answer | bytes:
            with self._published():
                return await work()

        return publish

    def admit(self, rights: Rights, request: R) -> R:
        """The request, as far as it is allowed. Raises Forbidden, UnknownSchedule, UnknownEndpoint."""
        rule = self.table.get(type(request))
        if rule is None:
            raise Forbidden(f"{type(request).__name__} is allowed to nobody.")
        replaced = rule.judge(rights, request)
        if replaced is None:
            return request
        assert isinstance(replaced, type(request)), "a judge leaves out parts, and no more"
        return replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Who carries requests out."""

    topics: TopicRequests
    subscriptions: SubscriptionRequests
    fetches: FetchRequests
    changes: ChangeRequests
    messages: MessageRequests
    letters: LetterRequests
    prepared: PreparedRequests
    groups: GroupRequests
    schedules: ScheduleRequests
    endpoints: EndpointRequests
    figures: FigureRequests
    space: SpaceRequests
    operations: OperationRequests
    bulk: BulkRequests

    def give_back(self, request: Return, asked: Asked) -> Answer | Work:
        """RETURN: of a subscription, or by receipts."""
        if request.group_id is None:
            return self.subscriptions.give_back(request, asked)
        return self.changes.give_back(request, asked)


def table_of(by: Handlers) -> Table:
    """Each request once."""
    return {
        Ping: Rule(_ping, may.free),
        OpenTopic: Rule(by.topics.open, may.of_topic(PUBLISH)),
        SetTopic: Rule(by.topics.set, may.of_topic(ADMIN), is_audited=True),
        GetTopic: Rule(by.topics.get, may.visible_topic),
        DeleteTopic: Rule(by.topics.delete, may.of_topic(ADMIN), is_audited=True),
        Subscribe: Rule(by.subscriptions.subscribe, may.of_topic(CONSUME)),
        Unsubscribe: Rule(by.subscriptions.unsubscribe, may.free),  # of this connection
        Fetch: Rule(by.fetches.fetch, may.of_topic(CONSUME)),
        EndFetch: Rule(by.fetches.end, may.free),
        Return: Rule(by.give_back, may.of_return),
        SetCredit: Rule(by.subscriptions.set_credit, may.free),  # within max_credit
        Cancel: Rule(by.changes.cancel, may.of_targets(PUBLISH)),
        Reschedule: Rule(by.changes.reschedule, may.of_targets(PUBLISH)),
        Redeliver: Rule(by.changes.redeliver, may.of_targets(CONSUME)),
        Nack: Rule(by.changes.nack, may.of_group),
        Extend: Rule(by.changes.extend, may.of_group),
        Change: Rule(by.changes.change, may.of_change),
        Transaction: Rule(by.changes.transaction, may.of_transaction),
        Browse: Rule(by.messages.browse, may.of_topic(QUERY)),
        GetMessages: Rule(by.messages.get, may.of_targets(QUERY)),
        GetHistory: Rule(by.messages.history, may.of_message(QUERY)),
        ReplayDead: Rule(by.letters.replay, may.of_topic(CONSUME), is_audited=True),
        Prepare: Rule(by.prepared.prepare, may.of_topic(PUBLISH)),
        Decide: Rule(by.prepared.decide, may.of_targets(PUBLISH)),
        GetGroups: Rule(by.groups.show, may.visible_groups),
        CreateGroup: Rule(by.groups.create, may.of_topic(CONSUME)),
        SeekGroup: Rule(by.groups.seek, may.of_topic(CONSUME), is_audited=True),
        SetGroup: Rule(by.groups.set, may.of_topic(CONSUME), is_audited=True),
        DeleteGroup: Rule(by.groups.delete, may.of_topic(ADMIN), is_audited=True),
        GetSchedules: Rule(by.schedules.show, may.visible_schedules),
        SetSchedule: Rule(by.schedules.set, may.new_schedule, is_audited=True),
        DeleteSchedule: Rule(by.schedules.delete, may.of_schedule, is_audited=True),
        TriggerSchedule: Rule(by.schedules.trigger, may.of_schedule),
        GetEndpoints: Rule(by.endpoints.show, may.visible_endpoints),
        SetEndpoint: Rule(by.endpoints.set, may.new_endpoint, is_audited=True),
        EnableEndpoint: Rule(by.endpoints.enable, may.of_switch, is_audited=True),
        DeleteEndpoint: Rule(by.endpoints.delete, may.of_endpoint, is_audited=True),
        TestEndpoint: Rule(by.endpoints.test, may.of_endpoint, is_audited=True),
        GetAttempts: Rule(by.endpoints.attempts, may.of_endpoint),
        TellEndpoints: Rule(by.endpoints.tell, may.of_told),
        GetStats: Rule(by.figures.stats, may.everywhere(QUERY)),
        GetFigures: Rule(by.figures.figures, may.everywhere(QUERY)),
        GetClients: Rule(by.operations.clients, may.everywhere(ADMIN)),
        Disconnect: Rule(by.operations.disconnect, may.everywhere(ADMIN), is_audited=True),
        GetAudit: Rule(by.operations.audit, may.everywhere(ADMIN)),
        GetTopics: Rule(by.figures.topics, may.free),  # shows those that it may know of
        GetWheel: Rule(by.figures.wheel, may.everywhere(QUERY)),
        GetEvents: Rule(by.figures.events, may.everywhere(QUERY)),
        Query: Rule(by.figures.query, may.everywhere(QUERY)),
        Purge: Rule(by.space.purge, may.everywhere(ADMIN), is_audited=True),
        Drop: Rule(by.space.drop, may.everywhere(ADMIN), is_audited=True),
        PlanJob: Rule(by.bulk.plan, may.everywhere(PUBLISH)),
        ReserveIds: Rule(by.bulk.reserve_ids, may.everywhere(PUBLISH)),
        AdoptJob: Rule(by.bulk.adopt, may.everywhere(PUBLISH), is_audited=True),
    }


def _ping(request: Ping, asked: Asked) -> None:
    asked.caller.outgoing.put(encode_frame(FrameType.PONG, asked.correlation))
