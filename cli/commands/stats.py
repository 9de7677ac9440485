"""`tickwheel stats`: what the broker holds and does."""

from __future__ import annotations

import click

from cli.output import print_json, stdout_console
from cli.session import current_session, shared_options
from cli.sizes import format_bytes
from cli.times import format_duration, format_moment
from tickwheel.stats import Stats


@click.command()
@shared_options
def stats() -> None:
    """Show what the broker holds and does.

    \b
    tickwheel stats
    tickwheel stats --json | jq .scheduled
    """
    with current_session().client() as client:
        found = client.stats()
    if current_session().json:
        print_json(found)
        return
    console = stdout_console()
    for title, rows in stat_sections(found):
        console.print(title, style="bold")
        for label, value in rows:
            console.print(f"  {label:<22}{value}", markup=False)


def stat_sections(found: Stats) -> list[tuple[str, list[tuple[str, str]]]]:
    """Headings with labels and values, as they are printed."""
    return [
        (
            "Messages",
            [
                ("stored", f"{found.messages:,}"),
                ("scheduled", f"{found.scheduled:,}"),
                ("ready", f"{found.ready:,}"),
                ("leased", f"{found.leased:,}"),
                ("delivered", f"{found.delivered:,}"),
                ("acknowledged", f"{found.acked:,}"),
                ("cancelled", f"{found.cancelled:,}"),
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
                ("log", f"{format_bytes(found.appended_bytes)}, {found.syncs:,} syncs"),
                ("not yet on disk", format_bytes(found.appended_bytes - found.durable_bytes)),
                ("all files", format_bytes(found.disk_bytes)),
            ],
        ),
    ]
