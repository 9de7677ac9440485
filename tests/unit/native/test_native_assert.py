"""What the C code asserts of a live store: a move that nothing decides ends the process. A replay may make it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from tickwheel_native import apply
from timerlog.layout import RUN, MessageState
from timerlog.store import Store

directory, is_live = Path(sys.argv[1]), sys.argv[2] == "live"
store = Store.open(directory, SMALL, NOW_MS)
topic = store.topics.open("t", NOW_MS)
reader = Reader(store, topic)
store.produce.ingest(send(topic, [b"acked", b"cancelled", b"ready"]), NOW_MS)
pump(store, NOW_MS)
acked, *_ = reader.fetch(limit=1)
reader.ack(acked)
store.change.cancel([2], NOW_MS)
native, group = store.tables.native, reader.group
assert native.is_live == 1
native.is_live = is_live


def run(first, epoch=0, time_ms=NOW_MS + 1_000):
    runs = np.zeros(1, RUN)
    runs["first"], runs["count"], runs["epoch"], runs["time_ms"] = first, 1, epoch, time_ms
    return runs


moves = {
    "end": lambda: apply.end(native, np.array([2], np.uint64), MessageState.CANCELLED),
    "put": lambda: apply.put(native, topic, 3, run(3)),
    "lease": lambda: apply.lease(native, group, 0, run(0, 2)),
    "ack": lambda: apply.ack(native, group, run(2, 1)),
    "nack": lambda: apply.nack(native, group, run(0, 1)),
    "redeliver": lambda: apply.redeliver(native, group, run(2), 0),
    "release": lambda: apply.release(native, group, run(0, 1)),
    "reschedule": lambda: apply.reschedule(native, run(2, 9), 256),
}
found = {}
for name, move in moves.items():
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writable, 2)
        move()
        os._exit(0)
    os.close(writable)
    with open(readable) as said:
        found[name] = [said.read(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
print(json.dumps(found))
"""

MOVES = {
    "end": "a message ends once",
    "put": "what comes into a topic is scheduled for it",
    "lease": "what is given out is in its topic, and not done with",
    "ack": "a delivery ends once, and is acked while it is held",
    "nack": "what is given back is held under this receipt",
    "redeliver": "what is delivered again was delivered before",
    "release": "a lease that gets another end is one",
    "reschedule": "what gets another time has not ended",
}


def made(directory: Path, how: str) -> dict[str, tuple[str, int]]:
    """By move: what a process that made it said, and how it ended."""
    command = [sys.executable, "-c", PROGRAM, str(directory / "data"), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {move: (said, code) for move, (said, code) in json.loads(done.stdout).items()}


def test_a_move_that_nothing_decides_ends_the_process(tmp_path: Path) -> None:
    ended = made(tmp_path, "live")
    assert {move: code for move, (_, code) in ended.items()} == dict.fromkeys(MOVES, -signal.SIGABRT), (
        f"{ended}: was it compiled with TICKWHEEL_ASSERT=1?"
    )
    assert [move for move, (said, _) in ended.items() if MOVES[move] not in said] == []


def test_a_replay_may_make_such_moves(tmp_path: Path) -> None:
    assert made(tmp_path, "replayed") == dict.fromkeys(MOVES, ("", 0))
