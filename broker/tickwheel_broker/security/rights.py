"""What a token allows at a broker: the judges, of which `requests/table.py` names one for each request.

Who is not limited is not asked. For others a request is judged before it is carried out; messages that it names by id
and that the token has no right to are taken out of it, so that the answer is the one for messages that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from tickwheel.protocol.bodies.admin import GetTopic
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.endpoints import (
    DeleteEndpoint,
    EnableEndpoint,
    Endpoint,
    GetAttempts,
    GetEndpoints,
    SetEndpoint,
    TellEndpoints,
    TestEndpoint,
)
from tickwheel.protocol.bodies.groups import GetGroups, GetHistory
from tickwheel.protocol.bodies.schedules import DeleteSchedule, GetSchedules, SetSchedule, TriggerSchedule
from tickwheel.protocol.bodies.settling import Change, Extend, Nack, Return, Transaction, TransactionChange
from tickwheel.protocol.errors import Forbidden, UnknownEndpoint, UnknownSchedule
from tickwheel.protocol.grants import base_topic
from tickwheel.protocol.limits import DEAD_SUFFIX, PREPARED_SUFFIX
from tickwheel_broker.security.grants import Identity
from timerlog.engine.produce import SendRights
from timerlog.tables.tables import Tables

PUBLISH, CONSUME, QUERY, ADMIN, PUSH = "publish", "consume", "query", "admin", "push"
_OF_CHANGE: Final = {"cancel": PUBLISH, "reschedule": PUBLISH, "redeliver": CONSUME}


class Rights:
    """What one identity may do at a broker. Each method raises Forbidden."""

    def __init__(
        self,
        tables: Tables,
        topic_of_schedule: Callable[[str], str | None],
        endpoint_of: Callable[[str], Endpoint | None],
        identity: Identity,
    ) -> None:
        """`topic_of_schedule` says to which topic a schedule sends, `endpoint_of` what an endpoint is; None: there is
        no such schedule or endpoint."""
        self._tables = tables
        self._topic_of_schedule = topic_of_schedule
        self._endpoint_of = endpoint_of
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
        topics[there] = self._tables.messages.take(numbers[there], "topic_id")
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

    def need_for_changes(self, permission: str, topic: str) -> None:
        """The same for what is done to messages of a topic."""
        self.need(*_of_owner(permission, topic))

    def _may_change(self, permission: str, topic_id: int) -> bool:
        return self.identity.may(*_of_owner(permission, self.topic_name(topic_id)))

    def need_of_schedule(self, name: str) -> None:
        """To publish to the topic of a schedule. One that it may not know of is one that is not there."""
        self.need(PUBLISH, self.topic_of_schedule(name))

    def topic_of_schedule(self, name: str) -> str:
        """The topic of a schedule that it may know of. Raises UnknownSchedule."""
        topic = self._topic_of_schedule(name)
        if topic is None or not self.identity.sees(topic):
            raise UnknownSchedule(f"There is no schedule {name!r}.")
        return topic

    def has_schedule(self, name: str) -> bool:
        """Whether there is such a schedule, also one that it may not know of."""
        return self._topic_of_schedule(name) is not None

    def endpoint(self, name: str) -> Endpoint:
        """An endpoint that it may know of. Raises UnknownEndpoint."""
        endpoint = self._endpoint_of(name)
        if endpoint is None or not self.identity.sees(endpoint.topic):
            raise UnknownEndpoint(f"There is no endpoint {name!r}.")
        return endpoint

    def carries(self, name: str) -> bool:
        """Whether it may send the messages of such an endpoint to it."""
        endpoint = self._endpoint_of(name)
        return endpoint is not None and may_see_secrets(self.identity, endpoint)

    def has_endpoint(self, name: str) -> bool:
        """Whether there is such an endpoint, also one that it may not know of."""
        return self._endpoint_of(name) is not None

    @property
    def _who(self) -> str:
        return f"Token {self.identity.name!r} ({self.identity.login})"

    def _refusal(self, permission: str, topic: str) -> Forbidden:
        return Forbidden(
            f"{self._who} may not {permission} {topic!r}.",
            advice=f"Whoever runs the broker can allow it: `tickwheel tokens grant {self.identity.login} "
            f"'{permission}:{topic}'`.",
        )


def _of_owner(permission: str, topic: str) -> tuple[str, str]:
    """To whom what is done to messages of a topic is up: a permission, and of which topic.

    Those that wait to be committed belong to who may publish to the topic that they are for. Dead letters belong to who
    consumes: who may give them back to their groups may drop them as well.
    """
    if permission == PUBLISH and topic.endswith(PREPARED_SUFFIX):
        return PUBLISH, base_topic(topic)
    if permission == PUBLISH and topic.endswith(DEAD_SUFFIX):
        return CONSUME, topic
    return permission, topic


Judge: TypeAlias = Callable[[Rights, Any], Request | None]
"""Lets a request pass, or raises Forbidden, UnknownSchedule, UnknownEndpoint. What is returned takes its place, if
anything is."""


def free(rights: Rights, request: Request) -> None:
    """About nothing but the connection itself."""


def of_topic(permission: str) -> Judge:
    """The permission for the topic that is named."""
    return lambda rights, request: rights.need(permission, request.topic)


def everywhere(permission: str) -> Judge:
    """The permission for all topics: of what concerns them all, or cannot be told apart by topic."""
    return lambda rights, request: rights.need_everywhere(permission)


def of_targets(permission: str) -> Judge:
    """The permission for messages by id, or by topic and key; prepared ones are of the topic that they are for."""
    return lambda rights, request: _allowed_targets(rights, permission, request)


def of_message(permission: str) -> Judge:
    """The same for one message."""
    return lambda rights, request: _allowed_message(rights, permission, request)


def _allowed_message(rights: Rights, permission: str, request: GetHistory) -> GetHistory | None:
    if request.id is not None:
        return msgspec.structs.replace(request, id=rights.allowed(permission, [request.id])[0])
    assert request.topic is not None
    rights.need(permission, request.topic)
    return None


def _allowed_targets(rights: Rights, permission: str, request: Any) -> Any:
    """What is left of something that has ids; None: it names a topic, and may stay as it is."""
    if request.ids is not None:
        return msgspec.structs.replace(request, ids=rights.allowed(permission, request.ids))
    rights.need_for_changes(permission, request.topic)
    return None


def visible_topic(rights: Rights, request: GetTopic) -> None:
    """Any permission for the topic."""
    if not rights.identity.sees(request.topic):
        rights.need(QUERY, request.topic)


def visible_groups(rights: Rights, request: GetGroups) -> None:
    """The list leaves out those of topics that it may not know of."""
    if request.topic is not None and not rights.identity.sees(request.topic):
        rights.need(QUERY, request.topic)


def of_group(rights: Rights, request: Nack | Extend) -> None:
    """To consume in the group."""
    rights.need_of_group(request.group_id)


def of_return(rights: Rights, request: Return) -> None:
    """To consume in the group; a subscription is the connection's own."""
    if request.group_id is not None:
        rights.need_of_group(request.group_id)


def of_change(rights: Rights, request: Change) -> None:
    """What it takes depends on what is to be done."""
    rights.need_for_changes(_OF_CHANGE[request.action], request.topic)


def of_transaction(rights: Rights, request: Transaction) -> Transaction:
    """The permissions for each of its parts."""
    for payload in request.sends:
        rights.need_of_topic_id(int.from_bytes(payload[:4], "little"))
    for ack in request.acks:
        rights.need_of_group(ack.group_id)
    changes = list(_allowed_changes(rights, request.changes))
    return msgspec.structs.replace(request, changes=changes)


def _allowed_changes(rights: Rights, changes: list[TransactionChange]) -> Iterator[TransactionChange]:
    for change in changes:
        replaced = _allowed_targets(rights, PUBLISH, change)
        yield change if replaced is None else replaced


def visible_schedules(rights: Rights, request: GetSchedules) -> None:
    """The list leaves out what it may not know of."""
    if request.name is not None:
        rights.topic_of_schedule(request.name)


def new_schedule(rights: Rights, request: SetSchedule) -> None:
    """Both to the topic that it has and to the one that it is to have."""
    if rights.has_schedule(request.name):
        rights.need_of_schedule(request.name)
    topic = request.fields.get("topic")
    if isinstance(topic, str):
        rights.need(PUBLISH, topic)


def of_schedule(rights: Rights, request: DeleteSchedule | TriggerSchedule) -> None:
    """To publish to the schedule's topic."""
    rights.need_of_schedule(request.name)


def may_see_secrets(identity: Identity, endpoint: Endpoint) -> bool:
    """Whether it is shown whole."""
    return identity.may(ADMIN, endpoint.topic) or identity.may(PUSH, endpoint.topic)


def visible_endpoints(rights: Rights, request: GetEndpoints) -> None:
    """The list leaves out what it may not know of."""
    if request.name is not None:
        rights.endpoint(request.name)


def new_endpoint(rights: Rights, request: SetEndpoint) -> None:
    """To administer the topic that it has, and the one that it is to have."""
    if rights.has_endpoint(request.name):
        rights.need(ADMIN, rights.endpoint(request.name).topic)
    topic = request.fields.get("topic")
    if isinstance(topic, str):
        rights.need(ADMIN, topic)


def of_endpoint(rights: Rights, request: DeleteEndpoint | TestEndpoint | GetAttempts) -> None:
    """To administer the endpoint's topic."""
    rights.need(ADMIN, rights.endpoint(request.name).topic)


def of_switch(rights: Rights, request: EnableEndpoint) -> None:
    """To administer the endpoint's topic; who carries its messages to it may disable it, too."""
    topic = rights.endpoint(request.name).topic
    if request.enabled or not rights.identity.may(PUSH, topic):
        rights.need(ADMIN, topic)


def of_told(rights: Rights, request: TellEndpoints) -> TellEndpoints:
    """Who carries an endpoint's messages to it says how that goes; what is told of others is left out."""
    states = [one for one in request.states if rights.carries(one.endpoint)]
    return msgspec.structs.replace(request, states=states)
