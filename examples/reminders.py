"""Schedules three reminders, changes its mind about one, and waits for the others. Run: python examples/reminders.py

The broker runs inside this process, on a temporary directory; with a daemon (`tickwheel serve`) only the first line
of `main` changes, to `async with tickwheel.Client() as client`.
"""

import tempfile
from datetime import UTC, datetime, timedelta

import anyio

import tickwheel


async def main() -> None:
    """Sends, cancels, receives."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            now = datetime.now(UTC)
            await client.send(
                "reminders", b"take the tea out", key="tea", deliver_at=now + timedelta(seconds=2)
            )
            await client.send("reminders", b"call the dentist", key="dentist", delay=timedelta(seconds=1))
            await client.send("reminders", b"go to bed", key="bed", delay=timedelta(hours=9))
            print("bed:", await client.cancel("reminders", key="bed"))
            async with client.subscribe("reminders") as subscription:
                for _ in range(2):
                    message = await anext(subscription)
                    print(f"{message.key}: {message.body.decode()}")
                    await message.ack()


if __name__ == "__main__":
    anyio.run(main)
