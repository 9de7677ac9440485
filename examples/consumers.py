"""Handlers that are called for messages: retries, a message that is given up, and a clean shutdown.

Run: python examples/consumers.py
"""

import logging
import os
import signal
import tempfile
from datetime import timedelta

import anyio

import tickwheel
from tickwheel import GiveUp, Retry, RetryPolicy

logging.getLogger("tickwheel.worker").setLevel(logging.ERROR)  # the failures below are on purpose
left = {b"to ada", b"to bob", b"to nobody"}


async def send_mail(message: tickwheel.Message) -> None:
    """Returning is done; raising is not."""
    if message.body == b"to nobody":
        left.discard(message.body)
        raise GiveUp("no such customer")
    if message.body == b"to bob" and message.attempt == 1:
        print("to bob: the server is busy")
        raise Retry(timedelta(milliseconds=50), "the server is busy")
    print(f"{message.body.decode()}: sent in attempt {message.attempt}")
    left.discard(message.body)
    if not left:
        os.kill(os.getpid(), signal.SIGTERM)  # what systemd, Docker and Kubernetes send


async def main() -> None:
    """A broker of its own, and a worker until SIGTERM."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.send_many("mails", sorted(left))
            retry = RetryPolicy(attempts=5, delays=[timedelta(seconds=1), timedelta(minutes=1)])
            await client.work("mails", send_mail, concurrency=1, retry=retry, timeout=timedelta(seconds=10))
            for letter in await client.browse("mails.dead"):
                print(f"dead: {letter.body.decode()}")


if __name__ == "__main__":
    anyio.run(main)
