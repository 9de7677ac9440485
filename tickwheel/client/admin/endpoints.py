"""Endpoints: the URLs to which ``tickwheel push`` carries a topic's messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any, Final, NamedTuple

import msgspec

from tickwheel._moments import length, moment, moment_or_none
from tickwheel.client.admin.history import place_in_log
from tickwheel.client.admin.query import query_seconds
from tickwheel.client.checks import flag, listed, shown, text, whole
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.subscription import Start, start_of_group
from tickwheel.client.options import EndpointFormat
from tickwheel.client.requests import Requests
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.bodies import endpoints as bodies
from tickwheel.protocol.bodies.endpoints import (
    DEFAULT_RETRY_DELAYS_MS,
    GROUP_PREFIX,
    MAX_RATE_PER_S,
    MAX_STATES,
    DeleteEndpoint,
    DeleteEndpointOk,
    EnableEndpoint,
    GetAttempts,
    GetEndpoints,
    SetEndpoint,
    TellEndpoints,
    TellEndpointsOk,
    TestEndpoint,
    TestEndpointOk,
)
from tickwheel.protocol.endpoint_states import MAX_REASON_CHARS, ToldState
from tickwheel.protocol.errors import BadArgument, BadEndpoint, UrlNotAllowed
from tickwheel.protocol.limits import MAX_ATTEMPTS, MAX_ID
from tickwheel.protocol.targets import target_headers, target_urls
from tickwheel.stats import EndpointState

_STATUS: Final = re.compile(r"HTTP (\d{3})\b")

TASKS_TOPIC: Final = "http-tasks"
"""The topic of HTTP tasks for which no other one is named."""


class Endpoint(bodies.SeenEndpoint, frozen=True, kw_only=True):
    """An endpoint. Moments are epoch ms, durations ms."""

    state: EndpointState = EndpointState(name="delivering")
    """What becomes of its messages now."""

    @property
    def group(self) -> str:
        """The consumer group of ``topic`` from which its messages are taken."""
        return GROUP_PREFIX + self.name

    timeout = length("timeout_ms")

    @property
    def retry_delays(self) -> list[timedelta]:
        """``retry_delays_ms`` as timedeltas."""
        return [timedelta(milliseconds=delay_ms) for delay_ms in self.retry_delays_ms]

    disabled = moment_or_none("disabled_ms", "``disabled_ms`` as a datetime; None: it is enabled.")
    created = moment("created_ms")
    changed = moment("changed_ms")


class EndpointList(NamedTuple):
    """All endpoints that a token may see, by name, and the revision that says whether there was a change since."""

    endpoints: list[Endpoint]
    revision: int


class _Endpoints(msgspec.Struct, frozen=True):
    endpoints: list[Endpoint]
    more: bool
    revision: int


class _Endpoint(msgspec.Struct, frozen=True):
    endpoint: Endpoint


_UNSET: Final[dict[str, dict[str, Any]]] = {
    "description": {"description": ""},
    "url": {"url": ""},
    "allow_urls": {"allow_urls": []},
    "secrets": {"secrets": []},
    "headers": {"headers": {}},
    "format": {"format": "binary"},
    "timeout": {"timeout_ms": 15_000},
    "max_in_flight": {"max_in_flight": 8},
    "rate": {"rate_per_s": None},
    "retry_delays": {"retry_delays_ms": list(DEFAULT_RETRY_DELAYS_MS)},
    "give_up_on": {"give_up_on": []},
}


def task_headers(
    url: str, *, method: str = "POST", headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The headers of a message that is an HTTP task, for a schedule or a transaction that sends it. Raises
    BadArgument."""
    url, method = text(url, "url"), text(method, "method").upper()
    try:
        return target_headers.task_headers(url, method, _headers(headers or {}))
    except ValueError as error:
        raise BadArgument(
            f"There can be no such HTTP task: {error}.", advice="Correct what the message names."
        ) from None


class EndpointAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to an endpoint. Moments are epoch ms."""

    id: int = 0
    """Of the message; 0: it has been purged since."""
    epoch: int
    """Of the delivery, as in its receipt."""
    number: int | None = None
    """Which attempt it was, from 1; None: none, or it is not known."""
    time_ms: int | None = None
    due_ms: int | None = None
    """When it should have been: of the first attempt the message's time, of another one the end of the delay before it.
    None: it is not known."""
    outcome: str = "leased"
    """leased: it is under way, or held; acked; nacked: it was not taken, and goes on at ``next_ms``; dead: it was not
    taken, and given up; returned: it was no attempt; lease_ended: nothing was heard of it."""
    settled_ms: int | None = None
    """When it was acked, given up or returned, or its lease ended."""
    next_ms: int | None = None
    error: str = ""
    """What was answered, or why nothing was."""
    is_test: bool = False
    """It was a test: it is not tried again, whatever came of it."""

    @property
    def status(self) -> int | None:
        """The status of HTTP that was answered; None: there was none, or it was acked, and that is all that is kept."""
        found = _STATUS.match(self.error)
        return None if found is None else int(found[1])

    time = moment_or_none("time_ms", none=None)
    due = moment_or_none("due_ms", none=None)
    settled = moment_or_none("settled_ms", none=None)
    next = moment_or_none("next_ms", none=None)

    @property
    def lateness(self) -> timedelta | None:
        """From ``due_ms`` to ``time_ms``; None: it is not known."""
        if self.time_ms is None or self.due_ms is None:
            return None
        return timedelta(milliseconds=self.time_ms - self.due_ms)


class EndpointAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries to an endpoint, newest first."""

    attempts: list[EndpointAttempt]
    next: tuple[int, int] | None
    """There may be more before it; None: the log has no more."""
    missing: list[str]
    """``time``, ``size``: a part of the log was read, as much as may be read for one call, so that less may be known of
    these; ``next`` goes on where it ended."""


class EndpointRequests(Requests):
    """Endpoints."""

    _allowed: Mapping[str, tuple[int, Sequence[str]]] = {}
    """By topics of tasks: a revision, and the patterns of URLs that were allowed then."""

    async def set_endpoint(
        self,
        name: str,
        *,
        unset: Sequence[str] = (),
        topic: str | None = None,
        url: str | None = None,
        allow_urls: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        format: EndpointFormat | None = None,
        timeout: Delay | None = None,  # noqa: ASYNC109
        max_in_flight: int | None = None,
        rate: float | None = None,
        retry_delays: Sequence[Delay] | None = None,
        give_up_on: Sequence[int] | None = None,
        may_hold: bool | None = None,
        description: str | None = None,
        start: Start = "latest",
        expected_version: int | None = None,
    ) -> Endpoint:
        """Has messages of ``topic`` sent to ``url`` by ``tickwheel push``; or changes what is given of an endpoint that
        is there, all of it or, when it is refused, nothing.

        A new one gets what becomes due from now on, or from another ``start`` on, as ``subscribe`` has it: its group,
        ``push.<name>``, is made with it. ``allow_urls`` instead of ``url``: each message names the URL that it is for
        (see ``send_http_task``), and one of these patterns has to match it. ``secrets``: up to five, with each of which
        requests are signed; without any the broker makes one. ``format``: "binary" (CloudEvents in headers),
        "structured" (CloudEvents as JSON) or "plain". ``rate``: requests a second. ``retry_delays``: after each failed
        request; when they are used up, the message is given up. ``give_up_on``: statuses after which it is at once.
        ``may_hold``: it may answer 202 with ``tickwheel-lease`` and settle later. ``description``: what people should
        know of the endpoint, up to 500 characters. What is in ``unset`` is as if it had
        never been given. ``expected_version``: only if it is of this version now; 0: only if there is none.
        Raises BadEndpoint, EndpointChanged, TooManyEndpoints, UnknownTopic.
        """
        check_name(name, "endpoint")
        fields: dict[str, Any] = {}
        if topic is not None:
            check_name(topic)
            fields["topic"] = topic
        fields |= {"url": text(url, "url")} if url is not None else {}
        fields |= {"allow_urls": _texts(allow_urls, "allow_urls")} if allow_urls is not None else {}
        fields |= {"secrets": _texts(secrets, "secrets")} if secrets is not None else {}
        fields |= {"headers": _headers(headers)} if headers is not None else {}
        fields |= {"format": text(format, "format")} if format is not None else {}
        fields |= {"timeout_ms": duration_ms(timeout, "timeout")} if timeout is not None else {}
        if max_in_flight is not None:
            fields["max_in_flight"] = whole(max_in_flight, "max_in_flight", 1, 1_000)
        fields |= {"rate_per_s": _rate(rate)} if rate is not None else {}
        if retry_delays is not None:
            delays = listed(retry_delays, "retry_delays", "[timedelta(seconds=5)]")
            fields["retry_delays_ms"] = [duration_ms(delay, "retry_delays") for delay in delays]
        if give_up_on is not None:
            statuses = listed(give_up_on, "give_up_on", "[400, 422]")
            fields["give_up_on"] = [whole(status, "give_up_on", 300, 599) for status in statuses]
        fields |= {"may_hold": flag(may_hold, "may_hold")} if may_hold is not None else {}
        fields |= {"description": text(description, "description")} if description is not None else {}
        fields |= _unset_fields(unset, fields)
        request = SetEndpoint(
            name=name, fields=fields, start=start_of_group(start), expected_version=_version(expected_version)
        )
        try:
            return (await self._ask(request, _Endpoint)).endpoint
        except BadEndpoint:
            if fields.pop("description", None) != "":
                raise
        # A broker from before there were descriptions has none to unset.
        return (await self._ask(request, _Endpoint)).endpoint

    async def endpoint(self, name: str) -> Endpoint:
        """One endpoint. Secrets, values of headers and the path of its URL are left out unless the token may administer
        its topic or push. Raises UnknownEndpoint."""
        check_name(name, "endpoint")
        return (await self._ask(GetEndpoints(name=name), _Endpoints)).endpoints[0]

    async def endpoints(self, topic: str | None = None) -> list[Endpoint]:
        """All endpoints by name, or those of a topic."""
        if topic is not None:
            check_name(topic)
        found = await self._listed(topic, 0)
        assert found is not None, "no revision is 0"
        return found.endpoints

    async def endpoints_since(self, revision: int) -> EndpointList | None:
        """All endpoints, and their revision; None: they are as they were at this one. 0: in any case."""
        return await self._listed(None, whole(revision, "revision", 0, MAX_ID))

    async def _check_task(self, topic: str, url: str) -> None:
        """Raises UrlNotAllowed unless the topic's endpoint for tasks allows the URL. What it allows is asked for again
        only when it has changed."""
        revision, allowed = self._allowed.get(topic, (0, ()))
        found = await self._listed(topic, revision)
        if found is not None:
            patterns = [pattern for each in found.endpoints if not each.url for pattern in each.allow_urls]
            allowed = tuple(patterns)
            self._allowed = {**self._allowed, topic: (found.revision, allowed)}
        if not allowed:
            raise UrlNotAllowed(f"No endpoint carries out the HTTP tasks of {topic!r}.")
        if not any(target_urls.matches(pattern, url) for pattern in allowed):
            raise UrlNotAllowed(f"The HTTP tasks of {topic!r} may not be for {target_urls.shortened(url)}.")

    async def _listed(self, topic: str | None, revision: int) -> EndpointList | None:
        found: list[Endpoint] = []
        first = await self._ask(GetEndpoints(topic=topic, revision=revision), _Endpoints)
        if first.revision == revision:
            return None
        page = first
        while True:
            found += page.endpoints
            if not page.more or not page.endpoints:
                # Of the first page: a change in between is seen at the next look.
                return EndpointList(found, first.revision)
            page = await self._ask(GetEndpoints(topic=topic, after=found[-1].name), _Endpoints)

    async def enable_endpoint(self, name: str, *, expected_version: int | None = None) -> Endpoint:
        """Goes on with what waits in its group. Raises UnknownEndpoint, EndpointChanged."""
        check_name(name, "endpoint")
        request = EnableEndpoint(name=name, enabled=True, expected_version=_version(expected_version))
        return (await self._ask(request, _Endpoint)).endpoint

    async def disable_endpoint(
        self, name: str, reason: str = "", *, expected_version: int | None = None
    ) -> Endpoint:
        """Sends nothing to it until ``enable_endpoint``; its group keeps what comes meanwhile. Raises UnknownEndpoint,
        EndpointChanged."""
        check_name(name, "endpoint")
        reason = text(reason, "reason")[:MAX_REASON_CHARS]
        request = EnableEndpoint(
            name=name, enabled=False, reason=reason, expected_version=_version(expected_version)
        )
        return (await self._ask(request, _Endpoint)).endpoint

    async def delete_endpoint(
        self, name: str, *, keep_group: bool = False, expected_version: int | None = None
    ) -> int:
        """Deletes an endpoint and its group, so that no message is kept for it any more; how many messages the group
        was not done with. ``keep_group``: the group stays, and an endpoint that is made again goes on with it.
        Raises UnknownEndpoint, EndpointChanged, and EndpointInUse while the group is to go and has subscribers."""
        check_name(name, "endpoint")
        request = DeleteEndpoint(
            name=name,
            keep_group=flag(keep_group, "keep_group"),
            expected_version=_version(expected_version),
        )
        return (await self._answer(request, DeleteEndpointOk)).backlog

    async def test_endpoint(self, name: str) -> int:
        """Has ``tickwheel push`` send a test to an endpoint, also to one that is disabled: one request, signed like all
        others, of the type ``tickwheel.test``. Nothing else gets it. The message's id; ``endpoint_attempts`` shows what
        became of it. Raises UnknownEndpoint, and BadEndpoint for one without a URL."""
        check_name(name, "endpoint")
        return (await self._answer(TestEndpoint(name=name), TestEndpointOk)).id

    async def _tell_endpoints(self, states: Sequence[ToldState]) -> None:
        """Tells the broker what becomes of endpoints' messages; it knows that until this connection ends. Only
        ``tickwheel push`` can say it."""
        for start in range(0, len(states), MAX_STATES):
            await self._answer(TellEndpoints(states=[*states[start : start + MAX_STATES]]), TellEndpointsOk)

    async def endpoint_attempts(  # `timeout` goes to the broker: cancelling the wait alone would let the work go on
        self,
        name: str,
        *,
        limit: int = 100,
        before: tuple[int, int] | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> EndpointAttempts:
        """The last deliveries to an endpoint, at most ``limit`` (up to 1,000), tests among them. ``before``: the
        ``next`` of an earlier call. ``timeout`` is the seconds that the broker may spend on it: a process of its own
        reads its log. Raises UnknownEndpoint."""
        check_name(name, "endpoint")
        timeout_s = query_seconds(timeout)
        request = GetAttempts(
            name=name,
            timeout_ms=ceil(timeout_s * 1_000),
            limit=whole(limit, "limit", 1, MAX_ATTEMPTS),
            before=None if before is None else place_in_log(before),
        )
        return await self._ask(request, EndpointAttempts, timeout_s)


def _version(version: int | None) -> int | None:
    return None if version is None else whole(version, "expected_version", 0, MAX_ID)


def _texts(values: Sequence[str], name: str) -> list[str]:
    return [text(value, name) for value in listed(values, name, '["…"]')]


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise BadEndpoint(f"headers is {shown(headers)}.", advice="Use a dict of texts.")
    return {text(name, "headers"): text(value, "headers") for name, value in headers.items()}


def _rate(rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MAX_RATE_PER_S:
        raise BadEndpoint(f"rate is {shown(rate)}.", advice="Use requests a second: 10, or 0.5.")
    return float(rate)


def _unset_fields(unset: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in listed(unset, "unset", '["rate"]'):
        if not isinstance(name, str) or name not in _UNSET:
            raise BadEndpoint(f"{shown(name)} cannot be unset.", advice=f"Use {', '.join(_UNSET)}.")
        fields |= _UNSET[name]
    both = fields.keys() & given.keys()
    if both:
        raise BadEndpoint(f"{sorted(both)[0]} is both given and unset.")
    return fields
