"""Fetches messages once, without a subscription, and settles them over another connection.

Run: python examples/fetching.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel


async def main() -> None:
    """A cron job fetches two mails and leaves; what it started with them is settled later."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker:
            async with broker.client() as job:
                await job.send_many("mails", [b"to ada", b"to bob"])
                fetched = await job.fetch(
                    "mails", "senders", count=10, wait=timedelta(seconds=20), lease=timedelta(minutes=5)
                )
                print("fetched:", ", ".join(message.body.decode() for message in fetched))
                group_id = fetched.group_id
                sent, failed = [(message.id, message.epoch) for message in fetched]
            async with broker.client() as later:  # the leases do not end with the connection
                print("sent:", *await later.ack(group_id, [sent]))
                print("not sent:", *await later.nack(group_id, [failed], timedelta(0), error="no server"))
                again = await later.fetch("mails", "senders", wait=timedelta(seconds=20))
                print("again:", ", ".join(message.body.decode() for message in again))
                for message in again:
                    await message.ack()


if __name__ == "__main__":
    anyio.run(main)
