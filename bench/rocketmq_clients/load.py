"""What the official client for Python does to a server, and what it sees meanwhile: a line of JSON for each part of it.

python load.py ENDPOINT MODE topic=TOPIC [NAME=NUMBER ...]

Runs with the packages of that client alone.
"""

import itertools
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

ENDPOINT, MODE = sys.argv[1:3]
OPTIONS = dict(word.split("=", 1) for word in sys.argv[3:])
TOPIC = OPTIONS["topic"]
BODY = os.urandom(int(OPTIONS.get("size", 1_024)))
FIRST = b"first"
"""The body of what only makes a group."""
PRIME_PERIOD_S = 0.2


def number(name, otherwise):
    return float(OPTIONS.get(name, otherwise))


def note(**values):
    print(json.dumps(values), flush=True)


def share(values, part):
    ordered = sorted(values) or [0.0]
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3, 3)


def config():
    return ClientConfiguration(ENDPOINT, Credentials())


def message(body=BODY):
    made = Message()
    made.topic = TOPIC
    made.body = body
    return made


def producing():
    producer = Producer(config(), (TOPIC,))
    producer.startup()
    return producer


def consuming(work):
    class Listener(MessageListener):
        def consume(self, came):
            work(came)
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(config(), OPTIONS["group"], Listener(), {TOPIC: FilterExpression()})
    consumer.startup()
    return consumer


def parts():
    return [("warm", number("warm", 3)), ("seconds", number("seconds", 10))]


def send():
    """From so many threads, each waiting for its own answers."""
    threads = int(number("threads", 1))
    producer = producing()

    def work(end_s):
        times = []
        while time.monotonic() < end_s:
            began_s = time.perf_counter()
            producer.send(message())
            times.append(time.perf_counter() - began_s)
        return times

    with ThreadPoolExecutor(threads) as pool:
        for part, seconds in parts():
            began_s = time.monotonic()
            found = list(itertools.chain(*pool.map(work, [began_s + seconds] * threads)))
            told(part, len(found), began_s, answered_ms={"p50": share(found, 0.5), "p99": share(found, 0.99)})


def send_async():
    """So many at a time; for a time, or `count` of them."""
    window = int(number("window", 256))
    count = number("count", 0)
    producer = producing()
    for part, seconds in [("all", 0)] if count else parts():
        free = threading.Semaphore(window)
        failed = []
        began_s = time.monotonic()

        def answered(future, free=free, failed=failed):
            if future.exception() is not None:
                failed.append(future.exception())
            free.release()

        sent = 0
        while sent < count if count else time.monotonic() < began_s + seconds:
            free.acquire()
            producer.send_async(message()).add_done_callback(answered)
            sent += 1
        for _ in range(window):
            free.acquire()
        told(part, sent - len(failed), began_s, failed=len(failed))


def prime():
    """Makes a group, so that it misses nothing that is sent from now on."""
    came = threading.Event()
    consuming(lambda _: came.set())
    producer = producing()
    while not came.wait(PRIME_PERIOD_S):
        producer.send(message(FIRST))
    time.sleep(PRIME_PERIOD_S)  # its ack, too
    note(primed=OPTIONS["group"])


def push():
    """What waits in the topic."""
    count = int(number("count", 10_000))
    changed = threading.Condition()
    seen = 0

    def work(came):
        nonlocal seen
        if bytes(came.body) == FIRST:
            return
        with changed:
            seen += 1
            changed.notify_all()

    began_s = time.monotonic()
    consuming(work)
    for part, end in (("warm", count // 4), ("count", count)):
        with changed:
            before = seen
            changed.wait_for(lambda end=end: seen >= end)
            told(part, seen - before, began_s)
        began_s = time.monotonic()


def told(part, messages, began_s, **more):
    note(part=part, messages=messages, seconds=time.monotonic() - began_s, **more)


if __name__ == "__main__":
    {"send": send, "async": send_async, "prime": prime, "push": push}[MODE]()
    sys.stdout.flush()
    os._exit(0)  # to close a push consumer takes as long as its polls
