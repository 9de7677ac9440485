"""What Prometheus scrapes of `tickwheel push`: what came of requests, and how late they and their answers were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase

from tickwheel.protocol.endpoint_states import ToldName, ToldState
from tickwheel_push.gate import Gate
from tickwheel_push.http.answer import NoAnswer, Reason, Result
from tickwheel_push.outcome import Kind

_LATENESS_S: Final = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    60,
    600,
    3600,
    86400,
)
_ANSWER_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 300)
_ANSWERS: Final = (*get_args(Reason), *(f"{first}xx" for first in range(1, 10)))
_BREAKER: Final = {"closed": 0.0, "half_open": 0.5, "open": 1.0}


class Tally:
    """All endpoints of a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._attempts = Counter(
            "tickwheel_push_attempts",
            "Requests that were made, or could not be, by what became of their messages",
            ["endpoint", "outcome"],
            registry=self._registry,
        )
        self._answers = Counter(
            "tickwheel_push_answers",
            "Answers by status, such as 2xx, or by the reason why there was none",
            ["endpoint", "answer"],
            registry=self._registry,
        )
        self._postponed = Counter(
            "tickwheel_push_postponed",
            "Messages that were handed back for a while: tasks whose host was busy, and all when files ran out",
            ["endpoint"],
            registry=self._registry,
        )
        self._unsettled = Counter(
            "tickwheel_push_unsettled",
            "Outcomes that the broker did not take, so that their messages come again",
            ["endpoint"],
            registry=self._registry,
        )
        self._first = Histogram(
            "tickwheel_push_first_attempt_lateness_seconds",
            "From the time that a message was due until its first request begins",
            ["endpoint"],
            buckets=_LATENESS_S,
            registry=self._registry,
        )
        self._done = Histogram(
            "tickwheel_push_delivery_lateness_seconds",
            "From the time that a message was due until an answer 2xx",
            ["endpoint"],
            buckets=_LATENESS_S,
            registry=self._registry,
        )
        self._took = Histogram(
            "tickwheel_push_answer_seconds",
            "How long a request took, until its answer or the end of its time",
            ["endpoint"],
            buckets=_ANSWER_S,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "tickwheel_push_in_flight", "Requests on their way", ["endpoint"], registry=self._registry
        )
        self._breaker = Gauge(
            "tickwheel_push_breaker",
            "The circuit breaker: 0 closed, 1 open, 0.5 when a probe may go",
            ["endpoint"],
            registry=self._registry,
        )
        self._states = Gauge(
            "tickwheel_push_endpoint_state",
            "1 for the state that an endpoint is in, 0 for the others; tests do not count",
            ["endpoint", "state"],
            registry=self._registry,
        )
        self._endpoints = Gauge(
            "tickwheel_push_endpoints", "Endpoints that are served now", registry=self._registry
        )

    def of(self, endpoint: str) -> EndpointTally:
        """That of one endpoint."""
        return EndpointTally(self, endpoint)

    def forget(self, endpoint: str) -> None:
        """One that is no more has no figures, so that they do not grow with all that ever were."""
        for labels, metrics in self._all_labels():
            for metric in metrics:
                with suppress(KeyError):  # as some versions have it
                    metric.remove(endpoint, *labels)

    def _all_labels(self) -> Iterator[tuple[tuple[str, ...], Sequence[MetricWrapperBase]]]:
        """Those beside the endpoint, and who has them."""
        yield (
            (),
            (
                self._postponed,
                self._unsettled,
                self._first,
                self._done,
                self._took,
                self._in_flight,
                self._breaker,
            ),
        )
        for kind in Kind:
            yield (kind,), (self._attempts,)
        for answer in _ANSWERS:
            yield (answer,), (self._answers,)

    def serves(self, count: int) -> None:
        """So many endpoints."""
        self._endpoints.set(count)

    def states(self, states: Iterable[ToldState]) -> None:
        """What becomes of the messages of each endpoint: 1 for its state."""
        self._states.clear()
        for one in states:
            for name in get_args(ToldName):
                self._states.labels(one.endpoint, name).set(float(name == one.name))

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class EndpointTally:
    """One endpoint's figures."""

    def __init__(self, tally: Tally, endpoint: str) -> None:
        self._tally = tally
        self._endpoint = endpoint
        self._first = tally._first.labels(endpoint)
        self._done = tally._done.labels(endpoint)
        self._took = tally._took.labels(endpoint)

    def began(self, late_s: float, *, is_first: bool) -> None:
        """A request begins."""
        if is_first:
            self._first.observe(max(0.0, late_s))

    def answered(self, result: Result, took_s: float) -> None:
        """What was answered."""
        told = result.reason if isinstance(result, NoAnswer) else f"{result.status // 100}xx"
        self._tally._answers.labels(self._endpoint, told).inc()
        self._took.observe(took_s)

    def ended(self, outcome: str) -> None:
        """What became of the message."""
        self._tally._attempts.labels(self._endpoint, outcome).inc()

    def delivered(self, late_s: float) -> None:
        """An answer 2xx came."""
        self._done.observe(max(0.0, late_s))

    def postponed(self) -> None:
        """A message was handed back for a while."""
        self._tally._postponed.labels(self._endpoint).inc()

    def unsettled(self) -> None:
        """The broker did not take an outcome."""
        self._tally._unsettled.labels(self._endpoint).inc()

    def gate(self, gate: Gate, now: float) -> None:
        """How it stands now."""
        self._tally._in_flight.labels(self._endpoint).set(gate.in_flight)
        self._tally._breaker.labels(self._endpoint).set(_BREAKER[gate.breaker.state(now)])
