"""Changes a topic's settings while a subscriber listens, and pauses it. And the settings of a Vitess table.

Run: python examples/topic_settings.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel
from tickwheel.errors import BadTopicSettings

VITESS = "vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30"


async def main() -> None:
    """Everything counts at once, and drops no subscriber."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.create_topic("orders", ack_wait=timedelta(minutes=5), priority=7)
            # What a program keeps un-acked is held for it; here a lease shall end.
            async with client.subscribe("orders", max_hold=0) as subscription:
                await client.set_topic("orders", ack_wait_ms=100, max_attempts=2, unset=["priority"])
                await client.send("orders", b"17")
                for _ in range(2):
                    message = await anext(subscription)
                    print(f"priority {message.priority}, attempt {message.epoch}")

                await client.pause_topic("orders")
                await client.send("orders", b"18")
                print("while it is paused:", await subscription.receive(0.5))
                await client.resume_topic("orders")
                print("afterwards:", (await anext(subscription)).body.decode())

            try:
                await client.set_topic("orders", rate=500, max_attempts=-1)
            except BadTopicSettings as error:
                print("refused:", error.code)
            print("what is set:", *(await client.topic("orders")).settings)

            made = await client.create_topic("jobs", vitess=VITESS)
            print(
                f"from Vitess: {made.settings['ack_wait_ms']:g} ms, {made.settings['cache_size']:g} messages"
            )


if __name__ == "__main__":
    anyio.run(main)
