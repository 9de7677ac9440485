"""`tickwheel inspect`: verify a data directory without a broker, and say where it is damaged."""

from __future__ import annotations

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
    from timerlog.maintenance.inspect import InspectedFile, InspectReport


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def inspect(directory: Path) -> None:
    """Verify a data directory that no broker has open, record by record, and change nothing.

    \b
    tickwheel inspect ./data
    tickwheel inspect ./data --json | jq .damage

    A torn tail is what a crash may leave behind: a start cuts it off, and nothing that was acknowledged is in it.
    Any other damage keeps a broker from starting, and the exit code is 65.
    """
    from timerlog.files.lock import owner_of
    from timerlog.maintenance.inspect import inspect_directory

    check_directory(directory)
    owner = owner_of(directory)
    report = inspect_directory(directory)
    in_use = (f"process {owner} has it open: what it writes now may look torn", "yellow")
    print_report(
        {**msgspec.structs.asdict(report), "owner": owner},
        *(f"{label:<12}{value}" for label, value in report_rows(report)),
        *([] if owner is None else [in_use]),
        *((line, "yellow" if report.ok else "red") for line in damage_lines(report)),
        (verdict(report), "bold green" if report.ok else "bold red"),
    )
    if not report.ok:
        raise CommandFailed(ExitCode.DAMAGED)


def report_rows(report: InspectReport) -> list[tuple[str, str]]:
    """Labels and values, as they are printed."""
    kinds = ", ".join(f"{count:,} {name}" for name, count in report.records_by_type.items())
    return [
        ("directory", report.directory),
        ("log", f"{format_bytes(report.log_bytes)} in {counted(report.segments, 'segment')}"),
        ("messages", f"{report.messages:,}"),
        ("records", kinds or "none"),
        ("checkpoint", _checkpoint(report)),
        ("files", _files(report)),
        ("on disk", f"{format_bytes(report.disk_bytes)}, reserved space included"),
    ]


def _files(report: InspectReport) -> str:
    """How many there are, and which are not what they should be."""
    odd = [f"{one.file} is damaged: a start makes it again" for one in report.files if _is_made_again(one)]
    return "; ".join([f"{len(report.files)}, the log in format {report.format}", *odd])


def _is_made_again(one: InspectedFile) -> bool:
    return one.state == "damaged" and one.kind != "commitlog"


def _checkpoint(report: InspectReport) -> str:
    found = report.checkpoint
    if found is None:
        return "none: a start reads the whole log"
    made = "at a clean stop" if found["clean"] else "while the broker ran"
    use = "" if found["would_be_used"] else "; it is not trustworthy, so a start reads the whole log"
    return f"covers the log up to byte {found['position']:,}, made {made}{use}"


def damage_lines(report: InspectReport) -> list[str]:
    """One line for each damaged place: file, offset, reason."""
    return [
        f"{'torn tail' if one.torn_tail else 'damaged'}: {one.file} at byte {one.offset:,}: {one.reason}"
        for one in report.damage
    ]


def verdict(report: InspectReport) -> str:
    """What the report means for the next start."""
    if not report.ok:
        return (
            "This directory is damaged: a broker refuses to start. Restore a backup, or see what can be saved: "
            "tickwheel repair"
        )
    if report.torn_tail_bytes:
        size = format_bytes(report.torn_tail_bytes)
        return f"A start cuts off a torn tail of {size}; everything that was acknowledged is there."
    return "Everything is whole."
