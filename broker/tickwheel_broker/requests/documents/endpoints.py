"""Requests about endpoints: list, set, switch on and off, delete, test, and what becomes of deliveries."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol import endpoint_tests
from tickwheel.protocol.bodies.endpoints import (
    MAX_ENDPOINT_NAME_CHARS,
    DeleteEndpoint,
    DeleteEndpointOk,
    EnableEndpoint,
    Endpoint,
    GetAttempts,
    GetEndpoints,
    SeenEndpoint,
    SetEndpoint,
    TellEndpoints,
    TellEndpointsOk,
    TestEndpoint,
    TestEndpointOk,
)
from tickwheel.protocol.bodies.requests import encode_map
from tickwheel.protocol.errors import BadEndpoint
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.documents import endpoint_fields
from tickwheel_broker.documents.endpoints import Endpoints, group_of
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.topics import open_topic
from tickwheel_broker.security.grants import Identity
from tickwheel_broker.security.rights import may_see_secrets
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.groups import Groups
from timerlog.engine.produce import Produce
from timerlog.engine.topics import Topics
from timerlog.query.worker import Tried
from timerlog.readers.attempts import Before, Mark
from timerlog.tables.tables import Tables

_PAGE: Final = 100
_TEST_BODY: Final = b'{"test": true}'
_TEST_HEADERS: Final = {"content-type": "application/json", "ce-type": "tickwheel.test"}
_TESTS_SETTINGS: Final = {"retention_ms": endpoint_tests.KEPT_MS}
_MARGIN_BYTES: Final = 4_096


class EndpointRequests:
    """Show, set, enable, delete."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        produce: Produce,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        endpoints: Endpoints,
        queries: Queries,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._produce = produce
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._endpoints = endpoints
        self._queries = queries

    def show(self, request: GetEndpoints, asked: Asked) -> bytes:
        """ENDPOINTS."""
        identity = asked.caller.identity
        revision = self._endpoints.revision_for(identity)
        if request.name is not None:
            seen = self._as_seen(self._endpoints.get(request.name), identity)
            return _page([seen], more=False, revision=revision)
        if request.revision == revision:
            return _page([], more=False, revision=revision)
        found = [
            endpoint
            for endpoint in self._endpoints.all()
            if endpoint.name > request.after
            and request.topic in (None, endpoint.topic)
            and identity.sees(endpoint.topic)
        ]
        page: list[SeenEndpoint] = []
        room_bytes = self._settings.max_frame_bytes - _MARGIN_BYTES
        for endpoint in found[:_PAGE]:
            seen = self._as_seen(endpoint, identity)
            room_bytes -= len(_one(seen))
            if page and room_bytes < 0:
                break
            page.append(seen)
        return _page(page, more=len(page) < len(found), revision=revision)

    def set(self, request: SetEndpoint, asked: Asked) -> bytes:
        """SET_ENDPOINT."""
        endpoints, now_ms = self._endpoints, self._clock.now_ms()
        check_name(request.name, "endpoint")
        if len(request.name) > MAX_ENDPOINT_NAME_CHARS:
            raise BadEndpoint(
                f"A name of {len(request.name)} characters is too long for an endpoint.",
                advice=f"Use at most {MAX_ENDPOINT_NAME_CHARS}: its group is called push.NAME.",
            )
        endpoints.check_version(request.name, request.expected_version)
        known = endpoints.find(request.name)
        endpoint = endpoint_fields.merged(known, request.name, request.fields, now_ms)
        if known is not None and endpoint_fields.says_the_same(known, endpoint):
            return _one(self._told(known))
        endpoints.check_tasks(endpoint)
        asked.expect(lambda endpoint: _one(self._told(endpoint)))
        if known is None:
            open_topic(self._topics, self._settings, asked.caller.identity, endpoint.topic, now_ms)
        endpoints.put(endpoint, request.start)
        return _one(self._told(endpoint))

    def enable(self, request: EnableEndpoint, asked: Asked) -> bytes:
        """ENABLE_ENDPOINT: on or off."""
        identity, known = asked.caller.identity, self._endpoints.get(request.name)
        self._endpoints.check_version(request.name, request.expected_version)
        if known.enabled == request.enabled:
            return _one(self._as_seen(known, identity))
        asked.expect(lambda endpoint: _one(self._as_seen(endpoint, identity)))
        switched = endpoint_fields.switched(
            known, enabled=request.enabled, reason=request.reason, now_ms=self._clock.now_ms()
        )
        self._endpoints.put(switched, "latest")
        return _one(self._as_seen(switched, identity))

    def delete(self, request: DeleteEndpoint, asked: Asked) -> DeleteEndpointOk:
        """DELETE_ENDPOINT."""
        self._endpoints.get(request.name)
        self._endpoints.check_version(request.name, request.expected_version)
        asked.expect(DeleteEndpointOk)
        return DeleteEndpointOk(self._endpoints.remove(request.name, keep_group=request.keep_group))

    def test(self, request: TestEndpoint, asked: Asked) -> TestEndpointOk:
        """TEST_ENDPOINT: into a topic of its own, which nothing but `tickwheel push` reads."""
        endpoint, now_ms = self._endpoints.get(request.name), self._clock.now_ms()
        if not endpoint.url:
            raise BadEndpoint(
                f"Endpoint {endpoint.name!r} has no URL of its own.",
                advice="Send a task for now instead: tickwheel endpoints task URL.",
            )
        name = endpoint_tests.tests_topic(endpoint.topic)
        if name not in self._tables.topic_ids:
            self._topics.create(name, _TESTS_SETTINGS, 0, now_ms)
        topic_id = self._tables.topic_ids[name]
        self._groups.open(topic_id, endpoint_tests.GROUP, now_ms)
        which = {endpoint_tests.ENDPOINT: endpoint.name, endpoint_tests.VERSION: endpoint.version}
        headers = msgspec.msgpack.encode({**_TEST_HEADERS, **which})
        payload = send_payload(topic_id, [Outbound(_TEST_BODY, headers=headers)])
        asked.expect(TestEndpointOk)
        return TestEndpointOk(self._endpoints.test(endpoint.name, self._produce.judge(payload, now_ms)))

    def tell(self, request: TellEndpoints, asked: Asked) -> TellEndpointsOk:
        """TELL_ENDPOINTS: it holds until the connection ends."""
        states, teller = self._endpoints.states, asked.caller.outgoing
        if not states.knows(teller):
            asked.caller.start_soon(self._forget_at_end, teller)
        states.tell(teller, [one for one in request.states if self._endpoints.find(one.endpoint)])
        return TellEndpointsOk()

    async def _forget_at_end(self, teller: Outgoing) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._endpoints.states.forget(teller)

    def _as_seen(self, endpoint: Endpoint, identity: Identity) -> SeenEndpoint:
        may_see = may_see_secrets(identity, endpoint)
        return self._told(endpoint if may_see else endpoint_fields.shortened(endpoint))

    def _told(self, endpoint: Endpoint) -> SeenEndpoint:
        return SeenEndpoint(**msgspec.structs.asdict(endpoint), state=self._endpoints.state_of(endpoint))

    def attempts(self, request: GetAttempts, asked: Asked) -> None:
        """ATTEMPTS: in a process of its own."""
        endpoint = self._endpoints.get(request.name)
        groups: list[int] = []
        topic_id = self._tables.topic_ids.get(endpoint.topic, 0)
        for part in [topic_id, *self._topics.shards_of(topic_id)] if topic_id else ():
            groups += [self._tables.topics[part].groups.get(group_of(endpoint.name), 0)]
        tests_id = self._tables.topic_ids.get(endpoint_tests.tests_topic(endpoint.topic))
        tests = 0 if tests_id is None else self._tables.topics[tests_id].groups.get(endpoint_tests.GROUP, 0)
        before = None if request.before is None else Before(*request.before)
        tried = Tried(
            groups=[group_id for group_id in dict.fromkeys(groups) if group_id],
            mark=Mark(tests, endpoint_tests.ENDPOINT, endpoint.name) if tests else None,
            before=before,
            end=self._queries.end,
            limit=request.limit,
        )
        caller = asked.caller
        caller.start_soon(self._queries.answer, caller.outgoing, asked.correlation, request, tried)


def _one(endpoint: SeenEndpoint) -> bytes:
    return encode_map({"endpoint": endpoint})


def _page(endpoints: list[SeenEndpoint], *, more: bool, revision: int) -> bytes:
    fields: dict[str, Any] = {"endpoints": endpoints, "more": more, "revision": revision}
    return encode_map(fields)
