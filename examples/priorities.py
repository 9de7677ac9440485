"""Delivers urgent messages first, and the others not never. Run: python examples/priorities.py"""

import tempfile

import anyio

import tickwheel


async def main() -> None:
    """Sends a backlog, then something urgent."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.create_topic("jobs", priority=100)
            await client.send_many("jobs", [b"report"] * 3)
            await client.send_many("jobs", [b"alarm"] * 20, priority=1)
            while (await client.topics())[0].ready < 23:
                await anyio.sleep(0.01)
            async with client.subscribe("jobs", credit=1) as subscription:
                order = []
                for _ in range(23):
                    message = await anext(subscription)
                    order.append(message.body.decode())
                    await message.ack(confirm=True)
            print("first:", order[0])
            # One delivery in eight goes to the message that waits longest, whatever its priority.
            print("reports among the first 16:", order[:16].count("report"))


if __name__ == "__main__":
    anyio.run(main)
