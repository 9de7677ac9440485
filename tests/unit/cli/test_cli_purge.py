"""What `tickwheel purge` says."""

from __future__ import annotations

import msgspec
import pytest

from tickwheel.stats import PurgeResult
from tickwheel_cli.running.purge import purge_lines

DONE = PurgeResult(
    run=3,
    is_done=True,
    segments=14,
    freed_bytes=900 << 20,
    purged_messages=5_000_000,
    moved_messages=51_860,
    moved_bytes=9 << 20,
    damaged_messages=0,
    kept_messages=7,
)


def test_what_was_done() -> None:
    assert purge_lines(DONE, dry_run=False) == [
        "5,000,000 messages purged, 51,860 moved",
        "14 segments deleted, 900.0 MiB of log freed",
        "7 messages stay where they are",
    ]


def test_what_would_be_done() -> None:
    assert purge_lines(DONE, dry_run=True)[:2] == [
        "5,000,000 messages would be purged, 51,860 would be moved",
        "14 segments would be deleted, 900.0 MiB of log would be freed",
    ]


def test_a_purge_that_is_not_worth_it() -> None:
    useless = msgspec.structs.replace(DONE, freed_bytes=0)
    warning = "It would write 9.0 MiB again and free nothing: it is not worth it now."
    assert warning in purge_lines(useless, dry_run=True)
    assert warning not in purge_lines(DONE, dry_run=True)
    assert warning not in purge_lines(useless, dry_run=False)


def test_one_is_no_plural() -> None:
    one = msgspec.structs.replace(DONE, purged_messages=1, segments=1, kept_messages=1)
    assert [line.split(" ")[:3] for line in purge_lines(one, dry_run=False)] == [
        ["1", "message", "purged,"],
        ["1", "segment", "deleted,"],
        ["1", "message", "stays"],
    ]


@pytest.mark.parametrize("dry_run", [True, False])
def test_damage_is_told(dry_run: bool) -> None:
    damaged = msgspec.structs.replace(DONE, damaged_messages=2)
    assert purge_lines(damaged, dry_run=dry_run)[-1] == "2 messages were damaged and are lost"


def test_nothing_is_claimed_before_it_is_done() -> None:
    (line,) = purge_lines(msgspec.structs.replace(DONE, is_done=False), dry_run=False)
    assert "has begun" in line
    assert "5,000,000" not in line


def test_a_log_that_grew_frees_nothing() -> None:
    assert (
        "0 bytes of log freed" in purge_lines(msgspec.structs.replace(DONE, freed_bytes=-5), dry_run=False)[1]
    )
