"""Real HTTP requests to the daemon's listener, and what Prometheus would make of the answers."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
TIMEOUT_S = 20


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Message
    text: str


def get(url: str, context: ssl.SSLContext | None = None, method: str = "GET", **headers: str) -> Answer:
    """One request; every status is an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as found:
            return Answer(found.status, found.headers, found.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.headers, refused.read().decode())


class Scraped:
    """One scrape."""

    def __init__(self, text: str, *, is_open_metrics: bool = False) -> None:
        parse = parse_openmetrics if is_open_metrics else parse_text
        self.families: dict[str, Metric] = {family.name: family for family in parse(text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Of one series; the name without its prefix."""
        return self.samples[f"tickwheel_{name}", tuple(sorted(labels.items()))]

    def refusals(self, code: str) -> float:
        """How often something was refused with this code; there is no series before the first."""
        return self.samples.get(("tickwheel_refusals_total", (("code", code),)), 0.0)

    def names(self) -> set[str]:
        """Of all samples."""
        return {name for name, _ in self.samples}


def scrape(url: str, accept: str = "", **headers: str) -> Scraped:
    """What /metrics says now."""
    answer = get(f"{url}/metrics", Accept=accept, **headers)
    assert answer.status == 200, answer.text
    return Scraped(answer.text, is_open_metrics=accept == OPEN_METRICS)


__all__ = ["OPEN_METRICS", "Answer", "Scraped", "get", "scrape"]
