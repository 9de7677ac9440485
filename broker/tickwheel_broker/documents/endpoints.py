"""Endpoints: documents in the log, each with a consumer group from which `tickwheel push` takes what it carries.

An endpoint and its group are made and deleted in one record: no message is missed between them, and a crash leaves no
group behind that nothing serves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from tickwheel.protocol.bodies.endpoints import GROUP_PREFIX, MAX_ENDPOINTS, Endpoint
from tickwheel.protocol.endpoint_states import EndpointState
from tickwheel.protocol.errors import (
    BadEndpoint,
    EndpointChanged,
    EndpointInUse,
    TooManyEndpoints,
    UnknownEndpoint,
)
from tickwheel.protocol.grants import Grant, Granted
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.documents.endpoint_states import EndpointStates
from timerlog.engine.change import Change
from timerlog.engine.groups import Groups, Start
from timerlog.engine.produce import JudgedSend
from timerlog.tables.tables import Tables

PREFIX: Final = "endpoint/"
_REVISIONS: Final = 1 << 62
_STATE: Final = "endpoint_state"
_STATE_BYTES: Final = 128
"""More than a state takes, without its reason."""


class Endpoints:
    """All endpoints of a broker."""

    def __init__(
        self,
        *,
        change: Change,
        groups: Groups,
        tables: Tables,
        readers: Readers,
        clock: Clock,
    ) -> None:
        self._change = change
        self._groups = groups
        self._tables = tables
        self._readers = readers
        self._clock = clock
        self.states = EndpointStates()
        found = [content for name, content in tables.documents.items() if name.startswith(PREFIX)]
        decoded = [msgspec.msgpack.decode(content, type=Endpoint) for content in found]
        self._endpoints: dict[str, Endpoint] = {endpoint.name: endpoint for endpoint in decoded}
        self._digests: dict[str, int] = {
            endpoint.name: _digest(content) for endpoint, content in zip(decoded, found, strict=True)
        }

    @property
    def revision(self) -> int:
        """Of what all endpoints say: another one after each change, the same after a restart; never 0."""
        return sum(self._digests.values()) % _REVISIONS + 1

    def revision_for(self, granted: Granted) -> int:
        """The same of what somebody sees of them: grants decide which those are, and whether they are whole."""
        if granted.grants is None:
            return self.revision
        return (self.revision + _digest_of_grants(granted.grants)) % _REVISIONS + 1

    def get(self, name: str) -> Endpoint:
        """Raises UnknownEndpoint."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise UnknownEndpoint(f"There is no endpoint {name!r}.")
        return endpoint

    def find(self, name: str) -> Endpoint | None:
        """None: there is no such endpoint."""
        return self._endpoints.get(name)

    def all(self) -> list[Endpoint]:
        """By name."""
        return sorted(self._endpoints.values(), key=lambda endpoint: endpoint.name)

    def of_topic(self, topic: str) -> list[str]:
        """The names of a topic's endpoints."""
        return [endpoint.name for endpoint in self.all() if endpoint.topic == topic]

    def state_of(self, endpoint: Endpoint) -> EndpointState:
        """What becomes of its messages now."""
        topic = self._tables.topics.get(self._tables.topic_ids.get(endpoint.topic, 0))
        group_id = None if topic is None else topic.groups.get(group_of(endpoint.name))
        return self.states.of(endpoint, is_read=bool(group_id is not None and self._readers.of(group_id)))

    def state_of_group(self, topic: str, group: str) -> EndpointState | None:
        """The same of the endpoint that a group belongs to; None: it belongs to none."""
        endpoint = self._of_group(topic, group)
        return None if endpoint is None else self.state_of(endpoint)

    def describe_group(self, topic: str, entry: dict[str, Any]) -> None:
        """Adds the state of the endpoint that a group belongs to, if it belongs to one."""
        state = self.state_of_group(topic, entry["name"])
        if state is not None:
            entry[_STATE] = state

    def check_tasks(self, endpoint: Endpoint) -> None:
        """Of a topic one endpoint carries out tasks, so that no task is carried out twice. Raises BadEndpoint."""
        for other in self._endpoints.values():
            if (other.topic, other.url, endpoint.url) == (
                endpoint.topic,
                "",
                "",
            ) and other.name != endpoint.name:
                raise BadEndpoint(
                    f"Endpoint {other.name!r} carries out the tasks of {endpoint.topic!r} already.",
                    advice="Add the URLs to that one, or use another topic.",
                )

    def check_version(self, name: str, expected: int | None) -> None:
        """Raises EndpointChanged unless the endpoint has the version that a request expects; 0: there is none."""
        known = self._endpoints.get(name)
        version = 0 if known is None else known.version
        if expected is not None and expected != version:
            raise EndpointChanged(f"Endpoint {name!r} has version {version}, not {expected}.")

    def put(self, endpoint: Endpoint, start: Start) -> None:
        """Keep an endpoint as it is from now on; a new one's group begins at `start`, unless it was kept of an earlier
        one. Raises TooManyEndpoints, UnknownTopic, TooManyGroups, DiskFull."""
        controls = []
        now_ms = self._clock.now_ms()
        if endpoint.name not in self._endpoints:
            if len(self._endpoints) >= MAX_ENDPOINTS:
                raise TooManyEndpoints
            topic_id = self._tables.topic_ids[endpoint.topic]
            if group_of(endpoint.name) not in self._tables.topics[topic_id].groups:
                controls = self._groups.opening(topic_id, group_of(endpoint.name), now_ms, start)
        content = msgspec.msgpack.encode(endpoint)
        self._change.put_document(PREFIX + endpoint.name, content, now_ms, controls=controls, result=endpoint)
        self._endpoints[endpoint.name], self._digests[endpoint.name] = endpoint, _digest(content)

    def test(self, name: str, send: JudgedSend) -> int:
        """Store a test of an endpoint, which says from now on that it has some. Its id. Raises UnknownEndpoint,
        DiskFull."""
        endpoint = msgspec.structs.replace(self.get(name), has_tests=True)
        content, message_id = msgspec.msgpack.encode(endpoint), self._tables.next_id
        self._change.put_document(PREFIX + name, content, self._clock.now_ms(), send=send, result=message_id)
        self._endpoints[name], self._digests[name] = endpoint, _digest(content)
        return message_id

    def remove(self, name: str, *, keep_group: bool) -> int:
        """Forget an endpoint, and its group unless that is to be kept; how many messages the group was not done with.
        Raises UnknownEndpoint, EndpointInUse, DiskFull."""
        topic, group = self.get(name).topic, group_of(name)
        group_id = self._tables.topics[self._tables.topic_ids[topic]].groups.get(group)
        backlog = 0 if group_id is None else self._groups.backlog_of(group_id)
        controls = []
        if group_id is not None and not keep_group:
            subscribers = self._readers.of(group_id)
            if subscribers:
                raise EndpointInUse(f"{group!r} of {topic!r} has {subscribers} subscribers.")
            controls = self._groups.deleting(topic, group)
        self._change.put_document(
            PREFIX + name, None, self._clock.now_ms(), controls=controls, result=backlog
        )
        del self._endpoints[name], self._digests[name]
        self.states.forget_endpoint(name)
        return backlog

    def check_unused(self, topic: str, group: str) -> None:
        """Raises EndpointInUse for the group of an endpoint that is there."""
        endpoint = self._of_group(topic, group)
        if endpoint is not None:
            raise EndpointInUse(
                f"{group!r} of {topic!r} belongs to endpoint {endpoint.name!r}.",
                advice="Delete the endpoint, and its group goes with it: `tickwheel endpoints delete`.",
            )

    def _of_group(self, topic: str, group: str) -> Endpoint | None:
        """The endpoint that a group belongs to; None: it belongs to none."""
        endpoint = self._endpoints.get(group.removeprefix(GROUP_PREFIX))
        if endpoint is None or endpoint.topic != topic or group != group_of(endpoint.name):
            return None
        return endpoint


def group_of(name: str) -> str:
    """The group from which an endpoint's messages are taken."""
    return GROUP_PREFIX + name


def room_of_state(entry: Mapping[str, Any]) -> int:
    """More bytes than the state takes that was added to a group."""
    state = entry.get(_STATE)
    return 0 if state is None else _STATE_BYTES + len(state.reason.encode())


@lru_cache(maxsize=1_024)
def _digest_of_grants(grants: frozenset[Grant]) -> int:
    return _digest("\n".join(sorted(map(str, grants))).encode())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8])
