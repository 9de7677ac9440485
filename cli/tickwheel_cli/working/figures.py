"""What Prometheus scrapes of `tickwheel work`: what came of messages, and how many are being handled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from tickwheel.worker.outcomes import Kind
from tickwheel.worker.tally import Tally

_OF = ["topic", "group"]


class Figures:
    """Reads the tallies of a worker when it is asked."""

    def __init__(self, tallies: Iterable[Tally]) -> None:
        self._tallies = list(tallies)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """All figures, for prometheus_client."""
        handled = CounterMetricFamily(
            "tickwheel_work_messages",
            "Messages that were handled, by what came of it",
            labels=[*_OF, "outcome"],
        )
        seconds = CounterMetricFamily(
            "tickwheel_work_seconds", "How long handlers were at work, together", labels=_OF
        )
        unsettled = CounterMetricFamily(
            "tickwheel_work_unsettled",
            "Messages whose outcome the broker was not told, or did not count: they come again",
            labels=_OF,
        )
        running = GaugeMetricFamily(
            "tickwheel_work_running", "Messages that are being handled now", labels=_OF
        )
        most = GaugeMetricFamily("tickwheel_work_concurrency", "How many may be handled at once", labels=_OF)
        for tally in self._tallies:
            labels = [tally.topic, tally.group]
            for kind in Kind:
                handled.add_metric([*labels, kind], tally.outcomes[kind])
            seconds.add_metric(labels, tally.handled_s)
            unsettled.add_metric(labels, tally.unsettled)
            running.add_metric(labels, tally.running)
            most.add_metric(labels, tally.concurrency)
        yield from (handled, seconds, unsettled, running, most)
