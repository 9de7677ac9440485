"""Keeps the messages of each customer in order, whatever fails, and works on different customers at once.

Run: python examples/ordering.py
"""

import tempfile

import anyio

import tickwheel


async def main() -> None:
    """Two customers, three messages each; the first message of one fails once."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            for step in ("created", "paid", "shipped"):
                for customer in ("ada", "bob"):
                    await client.send("orders", step.encode(), order_key=customer)
            seen: dict[str, list[str]] = {"ada": [], "bob": []}
            async with client.subscribe("orders", group="mail") as subscription:
                while sum(map(len, seen.values())) < 6:
                    message = await anext(subscription)
                    customer, step = str(message.order_key), message.body.decode()
                    if customer == "ada" and message.epoch == 1 and step == "created":
                        await message.nack(0, error="try again")  # "paid" waits for it
                        continue
                    seen[customer].append(step)
                    await message.ack()
            for customer, steps in seen.items():
                print(f"{customer}: {', '.join(steps)}")


if __name__ == "__main__":
    anyio.run(main)
