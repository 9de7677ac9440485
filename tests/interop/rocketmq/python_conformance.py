"""What the official client for Python sees of a server: one line of JSON for each observation.

python python_conformance.py ENDPOINT RUN [STEP ...]

Runs with the packages of that client alone. Against the gateway and against RocketMQ it does the same, so that what it
prints can be compared. Each step has topics and groups of its own, named by step and RUN; steps run side by side.
"""

import concurrent.futures
import contextlib
import itertools
import json
import sys
import threading
import time
import traceback
from collections import defaultdict

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ENDPOINT, RUN = sys.argv[1:3]
CHOSEN = sys.argv[3:]
LEASE_S = 10
IN_TIME_S = 20  # machines are busy
WAIT_S = 5
PATIENCE_S = 15

_printing = threading.Lock()


def note(step, what, **values):
    with _printing:
        print(json.dumps({"step": step, "what": what, **values}, ensure_ascii=True), flush=True)


def config():
    return ClientConfiguration(ENDPOINT, Credentials(), request_timeout=IN_TIME_S)


def topic_of(step, kind="normal"):
    return f"diff_{step}_{kind}_{RUN}"


def group_of(step, name=""):
    return f"diff_{step}_group{name}_{RUN}"


@contextlib.contextmanager
def producing(*topics, checker=None):
    producer = Producer(config(), topics, checker=checker)
    producer.startup()
    try:
        yield producer
    finally:
        producer.shutdown()


def once_it_is_known(receive):
    """RocketMQ's proxy fails with a null pointer as long as what a consumer said of itself is on its way to it."""

    def received(*args):
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return receive(*args)
            except Exception as error:
                if '"settings" is null' not in str(error) or time.monotonic() > until_s:
                    raise
                time.sleep(0.1)

    return received


@contextlib.contextmanager
def simple(group, topic, expression="*", kind=FilterType.TAG, wait_s=WAIT_S):
    consumer = SimpleConsumer(config(), group, {topic: FilterExpression(expression, kind)}, wait_s)
    consumer.startup()
    consumer.receive = once_it_is_known(consumer.receive)
    try:
        yield consumer
    finally:
        consumer.shutdown()


class Listening(MessageListener):
    """Consumes with a function, and keeps when it was called with what."""

    def __init__(self, answer):
        self.answer = answer
        self.seen = []
        self.changed = threading.Condition()

    def consume(self, message):
        with self.changed:
            self.seen.append((time.time(), message.body, message.delivery_attempt, message))
            self.changed.notify_all()
        return self.answer(message)

    def wait_for(self, count, patience_s=PATIENCE_S):
        with self.changed:
            self.changed.wait_for(lambda: len(self.seen) >= count, patience_s)
            return list(self.seen)


@contextlib.contextmanager
def pushing(group, topic, answer, expression="*"):
    listener = Listening(answer)
    consumer = PushConsumer(config(), group, listener, {topic: FilterExpression(expression)})
    consumer.startup()
    try:
        yield listener
    finally:
        consumer.shutdown()


def message_of(topic, body, **fields):
    message = Message()
    message.topic = topic
    message.body = body if isinstance(body, bytes) else body.encode()
    for name, value in fields.pop("properties", {}).items():
        message.add_property(name, value)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def outcome(work):
    """What a call did: "ok", or the class and code of its error."""
    try:
        work()
    except Exception as error:
        return {"error": type(error).__name__, "code": getattr(error, "code", None)}
    return "ok"


def receive(consumer, count, lease_s=LEASE_S, patience_s=PATIENCE_S, at_once=32):
    """So many messages, if they come in time."""
    found, until_s = [], time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < until_s:
        found += consumer.receive(at_once, lease_s) or []
    return found


def body_of(message):
    return message.body.decode()


# -- the steps -----------------------------------------------------------------------------------------------------


def step_1():
    """A topic that is there, and one that is not."""
    with producing(topic_of(1)) as producer:
        receipt = producer.send(message_of(topic_of(1), "there"))
        note(1, "sent", has_id=bool(receipt.message_id), recall=receipt.recall_handle or "")
        wrong = message_of(f"no_such_topic_{RUN}", "not there")
        note(1, "unknown topic", outcome=outcome(lambda: producer.send(wrong)))


def step_2():
    """What is received is what was sent."""
    topic = topic_of(2)
    with producing(topic) as producer, simple(group_of(2), topic) as consumer:
        properties = {
            "name": "Wert",
            "ümlaut": "süß",
            "emoji": "\U0001f680",
            "long": "x" * 100,
            "dots": "a.b",
        }
        sent = message_of(topic, "body", tag="tag", keys="one", properties=properties)
        receipt = producer.send(sent)
        (got,) = receive(consumer, 1)
        note(
            2,
            "received",
            topic=got.topic == topic,
            id=got.message_id == receipt.message_id,
            tag=got.tag,
            keys=sorted(got.keys),
            properties={name: value for name, value in sorted(got.properties.items()) if name in properties},
            attempt=got.delivery_attempt,
            type=got.message_type,
            group=got.message_group or None,
            delivery=got.delivery_timestamp or None,
            corrupted=got.corrupted,
            has_host=bool(got.born_host),
            born_s=abs(time.time() - got.born_timestamp / 1_000) // 60 * 60,
        )
        note(2, "ack", outcome=outcome(lambda: consumer.ack(got)))
        note(2, "ack twice", outcome=outcome(lambda: consumer.ack(got)))


def step_3():
    """Sizes of bodies."""
    topic = topic_of(3)
    with producing(topic) as producer, simple(group_of(3), topic) as consumer:
        for size in (1, 100_000, 4 << 20, (4 << 20) + 1):
            sent = message_of(topic, b"b" * size)
            note(3, "send", size=size, outcome=outcome(lambda sent=sent: producer.send(sent)))
        got = receive(consumer, 3)
        note(3, "received", sizes=sorted(len(one.body) for one in got))
        for one in got:
            consumer.ack(one)


def step_4():
    """What may not be in properties."""
    topic = topic_of(4)
    with producing(topic) as producer:
        tries = {
            "128": {f"p{number}": "v" for number in range(128)},
            "129": {f"p{number}": "v" for number in range(129)},
            "16 KiB": {"p": "v" * (16 * 1_024 - 1)},
            "more than 16 KiB": {"p": "v" * (16 * 1_024)},
            "reserved name": {"TRACE_ON": "v"},
            "control character in a name": {"a\u0001b": "v"},
            "control character in a value": {"a": "v\u0085w"},
        }
        for name, properties in tries.items():
            sent = message_of(topic, name, properties=properties)
            note(4, name, outcome=outcome(lambda sent=sent: producer.send(sent)))


def step_5():
    """Tags, keys and groups that may not be."""
    topic = topic_of(5)
    with producing(topic, topic_of(5, "fifo")) as producer:
        for name, sent in {
            "control character in the tag": message_of(topic, "t", tag="a\u0007b"),
            "control character in a key": message_of(topic, "k", keys="a\u0007b"),
            "group of 63": message_of(topic_of(5, "fifo"), "g", message_group="g" * 63),
            "group of 64": message_of(topic_of(5, "fifo"), "g", message_group="g" * 64),
        }.items():
            note(5, name, outcome=outcome(lambda sent=sent: producer.send(sent)))


def step_6():
    """Delay, and recall."""
    topic = topic_of(6, "delay")
    with producing(topic) as producer, simple(group_of(6), topic) as consumer:
        wanted_s = int(time.time()) + 4
        first = producer.send(message_of(topic, "in time", delivery_timestamp=wanted_s))
        recalled = producer.send(message_of(topic, "recalled", delivery_timestamp=wanted_s + 1))
        producer.send(message_of(topic, "past", delivery_timestamp=wanted_s - 3_600))
        note(6, "handle", present=bool(first.recall_handle))
        note(6, "recall", outcome=outcome(lambda: producer.recall_message(topic, recalled.recall_handle)))
        note(
            6, "recall twice", outcome=outcome(lambda: producer.recall_message(topic, recalled.recall_handle))
        )
        note(6, "recall garbage", outcome=outcome(lambda: producer.recall_message(topic, "garbage")))
        for day_s, name in ((23 * 3_600, "23 h"), (25 * 3_600, "25 h")):
            later = message_of(topic, name, delivery_timestamp=wanted_s + day_s)
            note(6, name, outcome=outcome(lambda later=later: producer.send(later)))
        got = {}
        until_s = time.monotonic() + 8
        while time.monotonic() < until_s:
            for one in consumer.receive(32, LEASE_S) or []:
                got[body_of(one)] = round(time.time() - wanted_s), one.delivery_timestamp is not None
                consumer.ack(one)
        note(6, "received", late_s={name: late_s for name, (late_s, _) in got.items() if name == "in time"})
        note(6, "which", bodies=sorted(got))
        note(6, "recall late", outcome=outcome(lambda: producer.recall_message(topic, first.recall_handle)))


def step_7():
    """Order in groups of messages."""
    topic = topic_of(7, "fifo")
    with producing(topic) as producer:
        for number in range(20):
            producer.send(message_of(topic, f"{number:02}", message_group=f"g{number % 3}"))
    seen = defaultdict(list)
    with pushing(group_of(7), topic, lambda _: ConsumeResult.SUCCESS) as listener:
        for _, body, _, message in listener.wait_for(20):
            seen[message.message_group].append(body.decode())
    note(7, "order", groups=dict(sorted(seen.items())))


class Checking(TransactionChecker):
    def __init__(self):
        self.asked = {"checker commits": threading.Event(), "checker rolls back": threading.Event()}

    def check(self, message):
        body = body_of(message)
        if not self.asked[body].is_set():
            note(8, "checked", body=body, tag=message.tag)
        self.asked[body].set()
        return (
            TransactionResolution.ROLLBACK if body == "checker rolls back" else TransactionResolution.COMMIT
        )


def step_8():
    """Transactions."""
    topic = topic_of(8, "transaction")
    checking = Checking()
    with producing(topic, checker=checking) as producer, simple(group_of(8), topic) as consumer:
        for body in ("commit", "rollback", "checker commits", "checker rolls back"):
            transaction = producer.begin_transaction()
            receipt = producer.send(message_of(topic, body, tag="half"), transaction)
            note(8, f"sent: {body}", has_transaction=bool(receipt.transaction_id))
            if body == "commit":
                note(8, body, outcome=outcome(transaction.commit))
            if body == "rollback":
                note(8, body, outcome=outcome(transaction.rollback))
        for asked in checking.asked.values():
            asked.wait(40)
        got = receive(consumer, 2, patience_s=25)
        for one in got:
            consumer.ack(one)
        note(8, "received", bodies=sorted(map(body_of, got)), types=sorted({one.message_type for one in got}))


def step_9():
    """A simple consumer: polls, leases, receipts."""
    topic = topic_of(9)
    with producing(topic) as producer, simple(group_of(9), topic) as consumer:
        began_s = time.monotonic()
        note(
            9,
            "nothing",
            count=len(consumer.receive(1, LEASE_S) or []),
            waited_s=round(time.monotonic() - began_s),
        )
        for lease_s in (9, 12 * 3_600 + 1):
            note(
                9,
                f"lease of {lease_s} s",
                outcome=outcome(lambda lease_s=lease_s: consumer.receive(1, lease_s)),
            )
        for number in range(3):
            producer.send(message_of(topic, f"{number}"))
        got = receive(consumer, 3, at_once=2)
        note(9, "received", bodies=sorted(map(body_of, got)))
        kept, dropped, changed = sorted(got, key=body_of)
        old = changed.receipt_handle
        note(9, "change", outcome=outcome(lambda: consumer.change_invisible_duration(changed, 30)))
        note(9, "new handle", differs=changed.receipt_handle != old)
        note(9, "ack changed", outcome=outcome(lambda: consumer.ack(changed)))
        note(9, "ack", outcome=outcome(lambda: consumer.ack(kept)))
        again = receive(consumer, 1, lease_s=60, patience_s=20)
        note(9, "again", bodies=list(map(body_of, again)), attempts=[one.delivery_attempt for one in again])
        note(9, "ack with the old handle", outcome=outcome(lambda: consumer.ack(dropped)))
        for one in again:
            note(9, "ack with the new handle", outcome=outcome(lambda one=one: consumer.ack(one)))


def step_10():
    """A push consumer, which fails twice."""
    topic = topic_of(10)
    attempts = defaultdict(int)
    raised = threading.Event()

    def answer(message):
        attempts[message.message_id] += 1
        body = body_of(message)
        if body == "raises" and not raised.is_set():
            raised.set()
            raise RuntimeError("the listener has failed")
        return (
            ConsumeResult.FAILURE
            if body == "fails" and attempts[message.message_id] < 3
            else ConsumeResult.SUCCESS
        )

    with producing(topic) as producer, pushing(group_of(10), topic, answer) as listener:
        for body in ("succeeds", "fails", "raises"):
            producer.send(message_of(topic, body))
        seen = listener.wait_for(6, 45)
    by_body = defaultdict(list)
    for seen_s, body, attempt, _ in seen:
        by_body[body.decode()].append((seen_s, attempt))
    for body, all_seen in sorted(by_body.items()):
        note(10, body, attempts=[attempt for _, attempt in all_seen])
        waits_s = [round(later[0] - earlier[0]) for earlier, later in itertools.pairwise(all_seen)]
        note(10, f"{body}: waits", waits_s=waits_s)


def step_11():
    """Two groups have all messages each; two consumers of a group share them."""
    topic = topic_of(11)
    with (
        pushing(group_of(11, "a"), topic, lambda _: ConsumeResult.SUCCESS) as alone,
        pushing(group_of(11, "b"), topic, lambda _: ConsumeResult.SUCCESS) as one,
        pushing(group_of(11, "b"), topic, lambda _: ConsumeResult.SUCCESS) as other,
        producing(topic) as producer,
    ):
        for number in range(20):
            producer.send(message_of(topic, f"{number:02}"))
        whole = sorted(body.decode() for _, body, _, _ in alone.wait_for(20))
        until_s = time.monotonic() + PATIENCE_S
        while len(one.seen) + len(other.seen) < 20 and time.monotonic() < until_s:
            time.sleep(0.1)
        shared = sorted(body.decode() for listener in (one, other) for _, body, _, _ in listener.seen)
    note(11, "alone", count=len(whole), distinct=len(set(whole)))
    note(11, "shared", count=len(shared), distinct=len(set(shared)))


def step_12():
    """Filters."""
    topic = topic_of(12)
    sql = FilterType.SQL
    wanted = {
        "all": ("*", FilterType.TAG),
        "a or b": ("a||b", FilterType.TAG),
        "a": ("a", FilterType.TAG),
        "number": ("n > 1 AND TAGS IS NOT NULL", sql),
        "in": ("color IN ('red', 'blue')", sql),
        "between": ("n BETWEEN 1 AND 2", sql),
        "not": ("NOT (n = 3) OR color IS NULL", sql),
    }
    with producing(topic) as producer:
        for number, (tag, color) in enumerate([("a", "red"), ("b", "green"), ("c", "blue"), (None, "red")]):
            sent = message_of(topic, f"{number}", properties={"n": f"{number}", "color": color})
            if tag:
                sent.tag = tag
            producer.send(sent)

    def filtered(name):
        expression, kind = wanted[name]
        found = []
        with simple(group_of(12, name.replace(" ", "_")), topic, expression, kind) as consumer:

            def take():
                for _ in range(2):
                    some = consumer.receive(32, LEASE_S) or []
                    for one in some:
                        consumer.ack(one)
                    found.extend(map(body_of, some))

            for _ in range(3):  # a filter that RocketMQ has not heard of yet is an internal error there
                how = outcome(take)
                if how == "ok" or how["code"] != 50_001:
                    break
        return sorted(found) if how == "ok" else how

    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        for name, found in zip(wanted, pool.map(filtered, wanted), strict=True):
            note(12, name, bodies=found)
    with simple(group_of(12, "wrong"), topic, "n >", sql) as consumer:
        note(12, "no SQL", outcome=outcome(lambda: consumer.receive(1, LEASE_S)))


def step_13():
    """A push consumer stops while it works on a message."""
    topic = topic_of(13)
    stuck = threading.Event()

    def answer(_):
        stuck.wait(20)
        return ConsumeResult.FAILURE

    with producing(topic) as producer:
        with pushing(group_of(13), topic, answer) as listener:
            producer.send(message_of(topic, "unfinished"))
            listener.wait_for(1)
            threading.Timer(0.5, stuck.set).start()
        with pushing(group_of(13), topic, lambda _: ConsumeResult.SUCCESS) as listener:
            seen = listener.wait_for(1, 75)
        note(13, "again", bodies=[body.decode() for _, body, _, _ in seen])


STEPS = {
    name.removeprefix("step_"): step for name, step in list(globals().items()) if name.startswith("step_")
}


def run(name):
    try:
        STEPS[name]()
    except Exception:
        note(int(name), "failed", trace=traceback.format_exc())
        return False
    note(int(name), "done")
    return True


def main():
    names = CHOSEN or list(STEPS)
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        return 0 if all(pool.map(run, names)) else 1


if __name__ == "__main__":
    sys.exit(main())
