"""The official client for Python under a server that is killed: a producer that sends until it is answered, and a
consumer that receives and acks. What they were told is one line of JSON each, until standard input ends.

python python_kill.py ENDPOINT TOPIC GROUP
"""

import json
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

ENDPOINT, TOPIC, GROUP = sys.argv[1:]
LEASE_S = 2
QUIET = 3
"""Receives with nothing, after the last message was sent."""

_printing = threading.Lock()
_is_over, _all_sent = threading.Event(), threading.Event()


def note(what, **values):
    with _printing:
        print(json.dumps({"what": what, **values}), flush=True)


def until_answered(ask, tries=200):
    """None: it was refused for good."""
    for _ in range(tries):
        try:
            return ask()
        except Exception as error:
            if "40013" in str(error) or "receipt" in str(error).lower():
                return None
            note("again", why=f"{type(error).__name__}: {error}"[:200])
            time.sleep(0.2)
    raise SystemExit("it was never answered")


def produce(producer):
    number = 0
    while not _is_over.is_set():
        number += 1
        message = Message()
        message.topic, message.body = TOPIC, str(number).encode()
        receipt = until_answered(lambda message=message: producer.send(message))
        note("sent", number=number, id=receipt.message_id)
    _all_sent.set()


def consume(consumer):
    quiet = 0
    while quiet < QUIET:
        found = until_answered(lambda: consumer.receive(16, LEASE_S) or [])
        quiet = quiet + 1 if _all_sent.is_set() and not found else 0
        for message in found or []:
            seen = {
                "number": int(message.body),
                "id": message.message_id,
                "attempt": message.delivery_attempt,
            }
            note("received", **seen)
            if until_answered(lambda message=message: (consumer.ack(message), True)):
                note("acked", **seen)


def main():
    config = ClientConfiguration(ENDPOINT, Credentials())
    producer = Producer(config, [TOPIC])
    producer.startup()
    consumer = SimpleConsumer(config, GROUP, {TOPIC: FilterExpression("*")}, 2)
    consumer.startup()
    threads = [
        threading.Thread(target=produce, args=(producer,)),
        threading.Thread(target=consume, args=(consumer,)),
    ]
    for thread in threads:
        thread.start()
    note("started")
    sys.stdin.read()
    _is_over.set()
    for thread in threads:
        thread.join()
    producer.shutdown()
    consumer.shutdown()


main()
