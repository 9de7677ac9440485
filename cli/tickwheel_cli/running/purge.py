"""`tickwheel purge`: give the disk space of messages that are done back now."""

from __future__ import annotations

import click

from tickwheel.protocol.readable import format_bytes
from tickwheel.stats import PurgeResult
from tickwheel_cli.shared.output import counted, print_report
from tickwheel_cli.shared.session import current_session, shared_options


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be purged.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is done.")
@shared_options
def purge(dry_run: bool, wait: bool) -> None:
    """Purge messages that are done, now.

    \b
    tickwheel purge --dry-run
    tickwheel purge --json | jq .freed_bytes

    The broker purges by itself when it is worth it. This does not wait for that: all segments of the log that
    hold something done are cleaned, oldest first. What was acknowledged less than `purge_after` ago stays.
    """
    with current_session().client() as client:
        result = client.purge(dry_run=dry_run, wait=wait)
    print_report(result, *purge_lines(result, dry_run=dry_run))


def purge_lines(result: PurgeResult, *, dry_run: bool) -> list[str]:
    """What happened, or would, in words."""
    if not result.is_done:
        return ["The purge has begun; `tickwheel stats` shows the disk space that is in use."]
    would = "would be " if dry_run else ""
    freed = f"{format_bytes(max(0, result.freed_bytes))} of log {would}freed"
    stay = "stays where it is" if result.kept_messages == 1 else "stay where they are"
    lines = [
        f"{counted(result.purged_messages, 'message')} {would}purged, {result.moved_messages:,} {would}moved",
        f"{counted(result.segments, 'segment')} {would}deleted, {freed}",
        f"{counted(result.kept_messages, 'message')} {stay}",
    ]
    if dry_run and result.moved_messages and result.freed_bytes <= 0:
        lines.append(
            f"It would write {format_bytes(result.moved_bytes)} again and free nothing: it is not worth it now."
        )
    if result.damaged_messages:
        were = "was damaged and is" if result.damaged_messages == 1 else "were damaged and are"
        lines.append(f"{counted(result.damaged_messages, 'message')} {were} lost")
    return lines
