"""What each request needs: the one table of permissions. A request that is not in it is refused.

Who is not limited is not asked. For others a request is judged before it is carried out; messages that it names by id
and that the token has no right to are taken out of it, so that the answer is the one for messages that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

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
from tickwheel.protocol.bodies.settling import (
    Change,
    Extend,
    Nack,
    Redeliver,
    Return,
    Transaction,
    TransactionChange,
)
from tickwheel.protocol.errors import Forbidden, UnknownSchedule
from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel_broker.security.grants import Identity, base_topic
from timerlog.engine.produce import SendRights

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker

R = TypeVar("R", bound=Request)

PUBLISH, CONSUME, QUERY, ADMIN = "publish", "consume", "query", "admin"
_OF_CHANGE: Final = {"cancel": PUBLISH, "reschedule": PUBLISH, "redeliver": CONSUME}


class Rights:
    """What one identity may do at a broker. Each method raises Forbidden."""

    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._tables = broker.store.tables
        self.schedules = broker.schedules
        self.identity = identity
        self.sending = SendRights(self._tables.native.topics_capacity, self.may_send)
        self._groups: dict[int, int] = {}  # of groups that it may consume: their topics

    def need(self, permission: str, topic: str) -> None:
        """The permission for a topic."""
        if not self.identity.may(permission, topic):
            raise self._refusal(permission, topic)

    def need_everywhere(self, permission: str) -> None:
        """The permission for all topics."""
        if not self.identity.may_everywhere(permission):
            raise self._refusal(permission, "*")

    def need_of_group(self, group_id: int) -> None:
        """To consume the topic of a group. Whether there is such a group is not told."""
        group = self._tables.groups.get(group_id)
        if group is not None and self._groups.get(group_id) == group.record.topic_id:
            return
        if group is None or not self.identity.may(CONSUME, self.topic_name(group.record.topic_id)):
            raise Forbidden(f"{self._who} may not consume in group {group_id}.")
        self._groups[group_id] = group.record.topic_id  # another group may get its number, but no other topic

    def need_of_topic_id(self, topic_id: int) -> None:
        """To publish to the topic of this number. Whether there is one is not told."""
        if not self.may_send(topic_id):
            raise self.refusal_of_send(topic_id.to_bytes(4, "little"))

    def refusal_of_send(self, payload: bytes | memoryview) -> Forbidden:
        """Of a SEND to a topic without the permission."""
        topic_id = int.from_bytes(payload[:4], "little")
        if topic_id in self._tables.topics and self.identity.sees(name := self.topic_name(topic_id)):
            return self._refusal(PUBLISH, name)
        return Forbidden(f"{self._who} may not publish to topic {topic_id}.")

    def may_send(self, topic_id: int) -> bool:
        """Whether there is a topic of this number to which it may publish."""
        return topic_id in self._tables.topics and self.identity.may(PUBLISH, self.topic_name(topic_id))

    def allowed(self, permission: str, ids: list[int]) -> list[int]:
        """These ids, with 0, which no message has, for those of topics without the permission."""
        numbers = np.array(ids, np.uint64)
        there = numbers < self._tables.next_id
        topics = np.zeros(len(ids), np.int64)
        topics[there] = self._tables.rows["topic_id"][numbers[there]]
        good = [
            topic_id
            for topic_id in np.unique(topics).tolist()
            if topic_id in self._tables.topics and self._may_change(permission, topic_id)
        ]
        allowed: list[int] = np.where(np.isin(topics, good), numbers, np.uint64(0)).tolist()
        return allowed

    def topic_name(self, topic_id: int) -> str:
        """The name of a topic that is there."""
        return self._tables.topics[topic_id].record.name

    def topic_of_group(self, group_id: int) -> str:
        """The name of the topic of a group that is there; empty if it is gone."""
        group = self._tables.groups.get(group_id)
        return "" if group is None else self.topic_name(group.record.topic_id)

    def _may_change(self, permission: str, topic_id: int) -> bool:
        """Messages that wait to be committed belong to who may publish to the topic that they are for."""
        name = self.topic_name(topic_id)
        prepared = permission == PUBLISH and name.endswith(PREPARED_SUFFIX)
        return self.identity.may(permission, base_topic(name) if prepared else name)

    def need_of_schedule(self, name: str) -> None:
        """To publish to the topic of a schedule. One that it may not know of is one that is not there."""
        schedule = self.schedules.get(name)
        if not self.identity.sees(schedule.topic):
            raise UnknownSchedule(f"There is no schedule {name!r}.")
        self.need(PUBLISH, schedule.topic)

    @property
    def _who(self) -> str:
        return f"Token {self.identity.name!r} ({self.identity.login})"

    def _refusal(self, permission: str, topic: str) -> Forbidden:
        return Forbidden(
            f"{self._who} may not {permission} {topic!r}.",
            advice=f"Whoever runs the broker can allow it: `tickwheel tokens grant {self.identity.login} "
            f"'{permission}:{topic}'`.",
        )


def admit(rights: Rights, request: R) -> R:
    """The request, as far as it is allowed. Raises Forbidden, UnknownSchedule."""
    judge = TABLE.get(type(request))
    if judge is None:
        raise Forbidden(f"{type(request).__name__} is allowed to nobody.")
    replaced: R | None = judge(rights, request)
    return request if replaced is None else replaced


# How each request is judged; what is returned takes its place ----------------------------------------------


def _free(rights: Rights, request: Request) -> None:
    """About nothing but the connection itself."""


def _topic(permission: str) -> Callable[[Rights, Any], None]:
    return lambda rights, request: rights.need(permission, request.topic)


def _everywhere(permission: str) -> Callable[[Rights, Any], None]:
    return lambda rights, request: rights.need_everywhere(permission)


def _target(permission: str) -> Callable[[Rights, Any], Any]:
    """Messages by id, or by topic and key."""

    def judge(rights: Rights, request: Any) -> Any:
        if request.ids is not None:
            return msgspec.structs.replace(request, ids=rights.allowed(permission, request.ids))
        rights.need(permission, request.topic)
        return None

    return judge


def _visible_topic(rights: Rights, request: GetTopic) -> None:
    if not rights.identity.sees(request.topic):
        rights.need(QUERY, request.topic)


def _groups(rights: Rights, request: GetGroups) -> None:
    """The list leaves out those of topics that it may not know of."""
    if request.topic is not None and not rights.identity.sees(request.topic):
        rights.need(QUERY, request.topic)


def _group(rights: Rights, request: Nack | Extend) -> None:
    rights.need_of_group(request.group_id)


def _change(rights: Rights, request: Change) -> None:
    rights.need(_OF_CHANGE[request.action], request.topic)


def _transaction(rights: Rights, request: Transaction) -> Transaction:
    for payload in request.sends:
        rights.need_of_topic_id(int.from_bytes(payload[:4], "little"))
    for ack in request.acks:
        rights.need_of_group(ack.group_id)
    changes = list(_allowed_changes(rights, request.changes))
    return msgspec.structs.replace(request, changes=changes)


def _allowed_changes(rights: Rights, changes: list[TransactionChange]) -> Iterator[TransactionChange]:
    judge = _target(PUBLISH)
    for change in changes:
        replaced = judge(rights, change)
        yield change if replaced is None else replaced


def _decide(rights: Rights, request: Decide) -> Decide:
    return msgspec.structs.replace(request, ids=rights.allowed(PUBLISH, request.ids))


def _schedules(rights: Rights, request: GetSchedules) -> None:
    """The list leaves out what it may not know of."""
    if request.name is not None:
        schedule = rights.schedules.get(request.name)
        if not rights.identity.sees(schedule.topic):
            raise UnknownSchedule(f"There is no schedule {request.name!r}.")


def _set_schedule(rights: Rights, request: SetSchedule) -> None:
    """Both to the topic that it has and to the one that it is to have."""
    known = rights.schedules.schedules.get(request.name)
    if known is not None:
        rights.need_of_schedule(request.name)
    topic = request.fields.get("topic")
    if isinstance(topic, str):
        rights.need(PUBLISH, topic)


def _schedule(rights: Rights, request: DeleteSchedule | TriggerSchedule) -> None:
    rights.need_of_schedule(request.name)


TABLE: Final[dict[type[Request], Callable[[Rights, Any], Any]]] = {
    Ping: _free,
    Unsubscribe: _free,  # of this connection
    Return: _free,
    SetCredit: _free,  # within max_credit
    GetTopics: _free,  # shows those that it may know of
    OpenTopic: _topic(PUBLISH),
    Prepare: _topic(PUBLISH),
    Decide: _decide,
    Cancel: _target(PUBLISH),
    Reschedule: _target(PUBLISH),
    Change: _change,
    Transaction: _transaction,
    Subscribe: _topic(CONSUME),
    Nack: _group,
    Extend: _group,
    Redeliver: _target(CONSUME),
    ReplayDead: _topic(CONSUME),
    Browse: _topic(QUERY),
    GetTopic: _visible_topic,
    GetMessages: _target(QUERY),
    GetGroups: _groups,
    CreateGroup: _topic(CONSUME),
    SeekGroup: _topic(CONSUME),
    DeleteGroup: _topic(ADMIN),
    SetTopic: _topic(ADMIN),
    DeleteTopic: _topic(ADMIN),
    GetSchedules: _schedules,
    SetSchedule: _set_schedule,
    DeleteSchedule: _schedule,
    TriggerSchedule: _schedule,
    # What concerns all topics, or cannot be told apart by topic.
    Query: _everywhere(QUERY),
    GetStats: _everywhere(QUERY),
    GetWheel: _everywhere(QUERY),
    Purge: _everywhere(ADMIN),
    Drop: _everywhere(ADMIN),
    PlanJob: _everywhere(PUBLISH),
    ReserveIds: _everywhere(PUBLISH),
    AdoptJob: _everywhere(PUBLISH),
}

AUDITED: Final[frozenset[type[Request]]] = frozenset(
    {
        SetTopic,
        DeleteTopic,
        DeleteGroup,
        SeekGroup,
        Purge,
        Drop,
        ReplayDead,
        SetSchedule,
        DeleteSchedule,
        AdoptJob,
    }
)
"""What changes more than messages is written down when it was done."""
