"""The invariants are no rubber stamp: with a defect in the C code one of them does not hold, or a call did not do what
it says. Each defect is put into a copy of a source, and the engine's target is run over inputs drawn from a seed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from fuzz.run import FLAGS, HERE, sources

NATIVE: Final = HERE.parent / "native"
INPUTS: Final = 100
INPUT_BYTES: Final = 6_000

# (source, what stands there, what the defect makes of it)
DEFECTS: Final = {
    "a receipt of an earlier lease counts": (
        "acks.c",
        "delivery->state == TW_LEASED && delivery->epoch == epoch ?",
        "delivery->state == TW_LEASED ?",
    ),
    "one lease is given back twice": ("acks.c", "group->rows[seqs[accepted]].flags |= TW_ACKING;", ""),
    "a subscription's credit does not come back": (
        "acks.c",
        "store->outstanding[row->holder]--;",
        "row->holder = 0;",
    ),
    "a lease ends before its time": (
        "acks.c",
        "row->time_ms > now_ms ||",
        "row->time_ms > now_ms + 5000 ||",
    ),
    "one attempt too many": (
        "acks.c",
        "row->epoch - row->base_epoch >= group->max_attempts",
        "row->epoch - row->base_epoch > group->max_attempts",
    ),
    "what was selected and not logged is lost": ("delivery.c", "group->cursor[priority] = 0;", ";"),
    "a new message goes before one that comes again": (
        "delivery.c",
        "uint64_t at = retry_head(picker, priority);\n    if (at) {",
        "uint64_t at = lane_head(picker, priority) ? 0 : retry_head(picker, priority);\n    if (at) {",
    ),
    "the share of the longest-waiting goes to another": (
        "delivery.c",
        "if (fresh && (!oldest || fresh < oldest))",
        "if (fresh && (!oldest || fresh > oldest))",
    ),
    "an epoch is given out twice": (
        "delivery.c",
        "epochs[n] = (row->epoch > group->fence ? row->epoch : group->fence) + 1;",
        "epochs[n] = (row->epoch > group->fence ? row->epoch : group->fence) + !row->epoch;",
    ),
    "two messages of an ordering key are outstanding": ("orders.c", "return order->current == seq + 1;", "return 1;"),
    "a message of an ordering key that comes again waits behind new ones": (
        "orders.c",
        "before = is_new ? order->last : order->last_again ? order->last_again : order->last_run;",
        "before = order->last;",
    ),
    "a busy ordering key is not found any more": (
        "orders.c",
        "group->orders[i] = group->orders[j];\n        group->orders[j].hash = 0;\n        i = j;",
        "break;",
    ),
    "a message is purged that a group needs": (
        "purge.c",
        "(delivery->state != TW_ACKED && delivery->state != TW_DEAD)) return 0;",
        "(delivery->state != TW_ACKED && delivery->state != TW_DEAD)) break;",
    ),
    "a moved message has its first priority": ("purge.c", "to[PRIORITY] = row->priority;", ""),
    "a moved message has fewer attempts": ("purge.c", ".base_epoch = delivery->base_epoch,", ""),
    "purged messages are not in the sums": (
        "purge.c",
        "of_groups[3 * g + 1] += delivery->state == TW_DEAD;",
        "",
    ),
    "a group stands on a lane's head that is gone": (
        "purge.c",
        "if (store->groups[g].cursor[priority] == head) store->groups[g].cursor[priority] = 0;",
        ";",
    ),
    "a start passes over what waits for its ordering key": (
        "rebuild.c",
        "if (is_ordered && !is_before && tw_is_open(store, group, seq)) *held = 1;",
        "(void)is_ordered;",
    ),
    "after a start an ordering key is not busy": (
        "rebuild.c",
        "if (!tw_order_enter(group, tw_order_hash(store, row), *from_seq) && !(delivery->flags & TW_IN_RETRY))\n"
        "            tw_order_join(group, *from_seq);",
        ";",
    ),
    "a start forgets what was purged": ("rebuild.c", "group->acked = group->purged_acked;", "group->acked = 0;"),
    "a start misses what waits for its time": (
        "rebuild.c",
        "if (row->state != TW_SCHEDULED) continue;",
        "if (row->state != TW_SCHEDULED || row->version > 2) continue;",
    ),
    "who holds a cancelled message keeps its credit used": (
        "change.c",
        "tw_let_go(store, group, delivery);",
        "if (group->leased) group->leased--;",
    ),
    "the key of a cancelled message stays taken": (
        "change.c",
        "if (row->key_hash) tw_keys_remove(store, ids[i]);",
        "",
    ),
    "an ordering key waits for a cancelled message": (
        "change.c",
        "tw_keys_remove(store, ids[i]);\n        if (before == TW_READY && (row->flags & TW_ORDERED))",
        "tw_keys_remove(store, ids[i]);\n        if (before == TW_SCHEDULED)",
    ),
    "another time gives another lane to an ordering key": (
        "change.c",
        "if (priority <= 255 && !(row->flags & TW_ORDERED))",
        "if (priority <= 255)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("objects")
    return [compiled(source, folder) for source in [*sources(), HERE / "target_engine.c", HERE / "replay.c"]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    detail, folder = random.Random(14), tmp_path_factory.mktemp("inputs")
    paths = [folder / f"{number:03}" for number in range(INPUTS)]
    for path in paths:
        most = detail.choice([32, 64, 256])  # small numbers name the ids and epochs that there are
        path.write_bytes(bytes(detail.randrange(most) for _ in range(INPUT_BYTES)))
    return paths


def compiled(source: Path, folder: Path) -> Path:
    target = folder / f"{source.stem}.o"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(target)], check=True)
    return target


def run(objects: list[Path], inputs: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "program"
    subprocess.run([os.environ.get("CC", "cc"), *map(str, objects), "-o", str(program)], check=True)
    return subprocess.run([str(program), *map(str, inputs)], capture_output=True, text=True, check=False)


def test_without_a_defect_everything_holds(objects: list[Path], inputs: list[Path], tmp_path: Path) -> None:
    done = run(objects, inputs, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{INPUTS} inputs\n"


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(objects: list[Path], inputs: list[Path], tmp_path: Path, defect: str) -> None:
    name, sound, broken = DEFECTS[defect]
    text = (NATIVE / name).read_text()
    assert text.count(sound) == 1
    (tmp_path / name).write_text(text.replace(sound, broken))
    mutated = compiled(tmp_path / name, tmp_path)
    done = run([mutated, *(path for path in objects if path.name != mutated.name)], inputs, tmp_path)
    assert done.returncode != 0
    assert "does not hold" in done.stderr
