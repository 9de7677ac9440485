"""`tickwheel repair`: save what can be saved of a damaged data directory, when asked to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tickwheel.protocol.readable import format_bytes
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import counted, print_report
from tickwheel_cli.shared.session import check_directory, json_option

if TYPE_CHECKING:
    from timerlog.maintenance.repair import RepairReport

SHOWN = 20


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--apply", "apply_it", is_flag=True, help="Do it; without, only say what would be done.")
@json_option
def repair(directory: Path, apply_it: bool) -> None:
    """Say what can be saved of a damaged data directory; with --apply, save it.

    \b
    tickwheel repair ./data
    tickwheel repair ./data --apply

    No broker may have the directory open. Records that fail their checksum are passed over, and everything else is
    kept: a start works again, and each place where something is lost is named. The damaged files are moved to
    DIRECTORY/damaged-TIME. A backup that is whole loses less: `tickwheel restore`.

    Without --apply, the exit code is 65 when there is something to repair.
    """
    from timerlog.maintenance.repair import repair as repair_directory

    check_directory(directory)
    report = repair_directory(directory, int(time.time() * 1000), apply=apply_it)
    print_report({**msgspec.structs.asdict(report), "needed": report.is_needed}, *repair_lines(report))
    if report.is_needed and not report.applied:
        raise CommandFailed(ExitCode.DAMAGED)


def repair_lines(report: RepairReport) -> list[str]:
    """What is lost and what is saved, in words."""
    if not report.is_needed:
        return ["The log is whole: there is nothing to repair."]
    lines = [f"mended: {name}: its header" for name in report.mended]
    lines += [f"set aside: {name}: it is no part of this log" for name in report.set_aside]
    for loss in report.losses[:SHOWN]:
        ids = ""
        if loss.messages:
            ids = f"; {_lost_messages(loss.first_id, loss.end_id - 1)}"
        size = format_bytes(loss.size_bytes)
        lines.append(f"lost: {loss.file} at byte {loss.offset:,}, {size}: {loss.reason}{ids}")
    if len(report.losses) > SHOWN:
        lines.append(f"and {len(report.losses) - SHOWN:,} places more; --json lists them all")
    did = "are" if report.applied else "would be"
    lines.append(
        f"{counted(report.messages, 'message')} {did} kept, at most {report.lost_messages:,} {did} lost"
    )
    if report.losses:
        lines.append(
            "What was lost may also have been an ack, a cancel or a new time: such messages come once more, come "
            "although they were cancelled, or come at their old time."
        )
    if report.applied:
        lines.append(f"The damaged files are in {report.kept_in}.")
    else:
        lines.append("Nothing was changed. With --apply it is done; a whole backup would lose less.")
    return lines


def _lost_messages(first_id: int, last_id: int) -> str:
    if first_id == last_id:
        return f"message {first_id:,} is lost, if it was sent"
    return f"messages {first_id:,} to {last_id:,} are lost, as far as they were sent"
