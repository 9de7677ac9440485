"""`tickwheel audit`: who came in, who was refused what, who changed what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tickwheel_cli.shared.output import print_json, print_result, printable, remark
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from tickwheel.stats import AuditLine
    from tickwheel.sync import Client

_FOLLOW_S = 1.0
_EARLIER = "There may be earlier lines: --limit shows up to 1,000, and the broker's audit_log has all."
_LATER = "There may be later lines: give --after the number of the last one, or a higher --limit."
_GAP = "Some lines came in between that the broker does not keep any more; they are in its audit_log."


@click.command()
@click.option("--after", type=click.IntRange(0), help="Only lines after the one with this number.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="At most so many."
)
@click.option("--follow", is_flag=True, help="Go on with each line that comes, until Ctrl-C.")
@shared_options
def audit(after: int | None, limit: int, follow: bool) -> None:
    """Show the end of the broker's audit log. With tokens it takes one with admin:*.

    \b
    tickwheel audit
    tickwheel audit --follow
    tickwheel audit --follow --json | jq 'select(.outcome == "refused")'

    The broker keeps the last 10,000 lines since its start; all of them are in the file that audit_log names.
    """
    with current_session().client() as client:
        found = client.audit(after=after, limit=limit)
        if found.has_gap:
            remark(_GAP)
        if len(found.lines) == limit and not follow:
            click.echo(_LATER if after is not None else _EARLIER, err=True)
        if not follow:
            print_result(found.lines, *(_text(line) for line in found.lines))
            return
        _print_each(found.lines)
        try:
            _follow(client, found.lines[-1].number if found.lines else after or 0)
        except KeyboardInterrupt:
            return


def _follow(client: Client, after: int) -> None:
    """Until Ctrl-C, which is the ordinary way to stop and no error."""
    while True:
        found = client.audit(after=after, limit=1_000)
        if found.has_gap and after:
            remark(_GAP)
        _print_each(found.lines)
        if found.lines:
            after = found.lines[-1].number
        else:
            time.sleep(_FOLLOW_S)


def _print_each(lines: list[AuditLine]) -> None:
    for line in lines:
        print_json(line) if current_session().json else click.echo(_text(line))


def _text(line: AuditLine) -> str:
    """What strangers have sent is in it: nothing of that may steer the terminal."""
    fields = (f"{name}={value}" for name, value in line.fields.items() if value != "")
    words = " ".join([line.timestamp, line.outcome, line.event, *fields])
    return printable(words.encode("utf-8", "replace"), limit=2_000)
