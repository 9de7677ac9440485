"""`tickwheel stats`: what the broker holds and does."""

from __future__ import annotations

import click

from tickwheel.protocol.readable import format_bytes, format_duration
from tickwheel.stats import Stats
from tickwheel_cli.shared.output import print_report
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.times import format_moment


@click.command()
@shared_options
def stats() -> None:
    """Show what the broker holds and does.

    \b
    tickwheel stats
    tickwheel stats --json | jq .scheduled

    In the JSON, "ready" counts what is in its topic, and "messages" all that were ever sent.
    """
    with current_session().client() as client:
        found = client.stats()
    lines: list[str | tuple[str, str]] = []
    for title, rows in stat_sections(found):
        lines.append((title, "bold"))
        lines += [f"  {label:<22}{value}" for label, value in rows]
    print_report(found, *lines)


def stat_sections(found: Stats) -> list[tuple[str, list[tuple[str, str]]]]:
    """Headings with labels and values, as they are printed."""
    return [
        (
            "Messages now",
            [
                ("scheduled", f"{found.scheduled:,}"),
                ("in their topics", f"{found.ready:,} (also done and not purged)"),
                ("leased", f"{found.leased:,}"),
            ],
        ),
        (
            "Ever, since the directory was made",
            [
                ("sent", f"{found.messages:,}"),
                ("cancelled", f"{found.cancelled:,}"),
                ("delivered", f"{found.delivered:,}"),
                ("acknowledged", f"{found.acked:,}"),
                ("written to the log", f"{format_bytes(found.appended_bytes)} (also what was purged)"),
            ],
        ),
        (
            "Users",
            [
                ("topics", f"{found.topics:,}"),
                ("groups", f"{found.groups:,}"),
                ("connections", f"{found.connections:,}"),
                ("subscribers", f"{found.subscribers:,}"),
            ],
        ),
        (
            "Broker",
            [
                ("version", found.version),
                ("up for", format_duration(found.uptime_ms)),
                ("its clock", format_moment(found.now_ms)),
                ("syncs", f"{found.syncs:,}"),
                ("files on disk", format_bytes(found.disk_bytes)),
            ],
        ),
    ]
