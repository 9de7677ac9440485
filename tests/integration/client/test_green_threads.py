"""The blocking client where a library makes blocking code cooperate: nothing in it keeps the others from running."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tickwheel.testing import TestBroker, broker

PATIENCE_S = 60


@pytest.fixture(scope="module")
def shared(way_of_sends: None) -> Iterator[TestBroker]:
    with broker(ack_wait="1h") as one:
        yield one


START = {
    "gevent": """
from gevent import monkey
monkey.patch_all()
import gevent
spawn, sleep = gevent.spawn, gevent.sleep
def join(tasks):
    gevent.joinall(tasks, raise_error=True)
""",
    "eventlet": """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch()
spawn, sleep = eventlet.spawn, eventlet.sleep
def join(tasks):
    for task in tasks:
        task.wait()
""",
}
PROGRAM = """
import sys, threading
import tickwheel.sync

turns = 0
def others():
    global turns
    while True:
        turns += 1
        sleep(0.001)
spawn(others)
with tickwheel.sync.Client(sys.argv[1], token="") as client:
    def send(part):
        for number in range(5):
            client.send(sys.argv[2], b"%d" % (5 * part + number))
    join([spawn(send, part) for part in range(20)])
    seen = []
    def consume():
        with client.subscribe(sys.argv[2], batch=10) as subscription:
            while len(seen) < 100:
                message = subscription.receive(0.1)
                if message is not None:
                    seen.append(int(message.body))
                    message.ack()
    join([spawn(consume) for _ in range(3)])
    assert sorted(seen) == list(range(100)), sorted(seen)
    with client.subscribe(sys.argv[2]) as subscription:
        for _ in range(100):  # all of the process may stand still, but not each time
            before = turns
            assert subscription.receive(0.2) is None
            if turns > before + 5:
                break
        else:
            raise AssertionError("the others stand still")
print("done")
"""


@pytest.mark.parametrize("library", START)
def test_sending_and_consuming(shared: TestBroker, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", START[library] + PROGRAM, shared.url, library],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    with shared.sync_client() as client:
        (group,) = next(one for one in client.topics() if one.name == library).groups
        assert (group.acked, group.leased) == (100, 0)
