"""Sends a message again and again: every so often, and on working days at nine in Paris.

Run: python examples/recurring_schedules.py
"""

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import anyio

import tickwheel


async def main() -> None:
    """Two schedules; takes three messages of one, and asks for the next time of the other."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.create_schedule("pulse", "beats", every=timedelta(milliseconds=250), body=b"beat")
            async with client.subscribe("beats") as subscription:
                times = []
                for _ in range(3):
                    message = await anext(subscription)
                    times.append(message.deliver_at_ms)
                    await message.ack()
            print("between beats:", [later - earlier for earlier, later in pairwise(times)])

            standup = await client.create_schedule(
                "standup",
                "chat",
                cron="0 9 * * MON-FRI",
                tz="Europe/Paris",
                body=b"stand-up!",
                overlap="skip",
            )
            first = datetime.fromtimestamp(standup.next_ms[0] / 1000, UTC).astimezone(
                ZoneInfo("Europe/Paris")
            )
            print("stand-up at", first.strftime("%H:%M"), "on a working day:", first.weekday() < 5)


if __name__ == "__main__":
    anyio.run(main)
