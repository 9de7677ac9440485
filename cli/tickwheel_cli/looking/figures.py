"""`tickwheel figures`: what the broker says of itself in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from tickwheel.stats import Histogram
from tickwheel_cli.shared.output import print_report
from tickwheel_cli.shared.session import current_session, shared_options

_SHARES = (0.5, 0.99, 0.999)


@click.command()
@shared_options
def figures() -> None:
    """Show the broker's counters and histograms: what /metrics has, for those without Prometheus.

    \b
    tickwheel figures
    tickwheel figures --json | jq .histograms.delivery_lateness_seconds
    tickwheel figures --json | jq '.topics[] | {name, purged}'

    Of a histogram the table has bounds that half of the values, 99 % and 99.9 % of them do not exceed. The JSON has
    all of it, and the figures of each topic and group besides.
    """
    with current_session().client() as client:
        found = client.figures()
    lines: list[str | tuple[str, str]] = [("Since the start", "bold")]
    lines.append(f"  {'':<34}{'count':>14}{'50 %':>12}{'99 %':>12}{'99.9 %':>12}")
    lines += [f"  {name:<34}{_spread(values)}" for name, values in found.histograms.items()]
    for title, values in (("Counters", found.counters), ("Now", found.gauges)):
        lines.append((title, "bold"))
        lines += [f"  {name:<34}{_number(value):>14}" for name, value in _flat(values)]
    print_report(found, *lines)


def _spread(values: Histogram) -> str:
    bounds = [_number(values.quantile(share)) if values.count else "-" for share in _SHARES]
    return f"{values.count:>14,}" + "".join(f"{bound:>12}" for bound in bounds)


def _flat(values: Mapping[str, float | dict[str, float]]) -> Iterator[tuple[str, float]]:
    """Of what there is by label, those that are not 0."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name} {label}", one) for label, one in value.items() if one)
        else:
            yield name, value


def _number(value: float) -> str:
    if value == float("inf"):
        return "more"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
