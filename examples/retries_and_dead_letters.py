"""Retries what fails, gives up after three attempts, and brings it back when the cause is repaired.

Run: python examples/retries_and_dead_letters.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel


async def main() -> None:
    """Fails three times, looks at the dead letter, replays it, succeeds."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.create_topic("mails", max_attempts=3, min_backoff=timedelta(milliseconds=50))
            await client.send("mails", b"to: ada@example.org")
            async with client.subscribe("mails", group="smtp") as subscription:
                for _ in range(3):
                    message = await anext(subscription)
                    result = await message.nack(error=f"connection refused ({message.epoch})")
                    print(f"attempt {message.epoch}: {result}")

                (letter,) = await client.browse("mails.dead")
                story = letter.headers["tickwheel-dead"]
                print(f"dead after {story['attempts']} attempts, last error: {story['error']}")

                print("replay:", await client.replay_dead("mails"))
                message = await anext(subscription)
                await message.ack(confirm=True)
                print("delivered:", message.body.decode())


if __name__ == "__main__":
    anyio.run(main)
