"""`tickwheel backup` and `tickwheel restore`: a verified copy of a data directory, and a directory from it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tickwheel.protocol.readable import format_bytes
from tickwheel_cli.shared.options import SIZE
from tickwheel_cli.shared.output import counted, print_report
from tickwheel_cli.shared.session import check_directory, json_option
from tickwheel_cli.shared.settings_options import say_limits
from tickwheel_cli.shared.times import format_moment

_NO_TOKENS = (
    "Tokens are in no backup: put tokens.json back before a broker starts there. Without it, whoever can connect "
    "may do everything."
)

if TYPE_CHECKING:
    from timerlog.maintenance.backup import Backup


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--rate",
    "bytes_per_s",
    type=SIZE,
    default="100MiB",
    show_default=True,
    help="Copy so much a second at most, so that the broker's own writes do not wait; 0: as fast as it goes.",
)
@json_option
def backup(directory: Path, target: Path, bytes_per_s: int) -> None:
    """Copy a data directory to TARGET while its broker serves, and verify every record of the copy.

    \b
    tickwheel backup ./data /backups/monday
    tickwheel restore --verify /backups/monday

    Everything that was acknowledged before the command began is in the copy. TARGET must be empty, or not there yet.
    The broker need not run, and is not asked: the command reads its files, on the same machine.
    """
    from timerlog.maintenance.backup import back_up

    check_directory(directory)
    made = back_up(directory, target, int(time.time() * 1000), _pace(bytes_per_s))
    _print(made, f"Backed up and verified: {target}")


def _pace(bytes_per_s: int) -> Callable[[int], None]:
    start_s, copied_bytes = time.monotonic(), 0

    def pause(more_bytes: int) -> None:
        nonlocal copied_bytes
        copied_bytes += more_bytes
        if bytes_per_s:
            time.sleep(max(0.0, start_s + copied_bytes / bytes_per_s - time.monotonic()))

    return pause


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Only verify the backup, and make nothing.")
@json_option
def restore(source: Path, directory: Path | None, verify: bool) -> None:
    """Verify BACKUP and make a data directory of it, on which a broker can be started.

    \b
    tickwheel restore /backups/monday ./data
    tickwheel restore --verify /backups/monday

    Everything is as it was when the backup was made: what was acked later is delivered again, what became due since
    is delivered at once, and what was sent later is not there. DIRECTORY must be empty, or not there yet.
    """
    from timerlog.commitlog.log import largest_frame_bytes
    from timerlog.maintenance.backup import check_backup
    from timerlog.maintenance.backup import restore as restore_backup

    if (directory is None) != verify:
        raise click.UsageError("give a DIRECTORY to make, or --verify to make none")
    if directory is None:
        _print(check_backup(source), f"The backup is whole: {source}")
    else:
        made = restore_backup(source, directory, int.from_bytes(os.urandom(8)))
        _print(made, f"Restored: {directory}")
        click.echo(_NO_TOKENS, err=True)
        say_limits(made.segment_bytes, largest_frame_bytes(made.segment_bytes))


def _print(made: Backup, verdict: str) -> None:
    log = f"{format_bytes(made.size_bytes)} in {counted(len(made.segments), 'segment')}"
    rows = [
        ("made", format_moment(made.created_ms)),
        ("log", f"{log}, up to byte {made.end_position:,}"),
        ("messages", f"{made.messages:,} in {counted(made.records, 'record')}"),
    ]
    lines = [f"{label:<12}{value}" for label, value in rows]
    print_report(msgspec.structs.asdict(made), *lines, (verdict, "bold green"))
