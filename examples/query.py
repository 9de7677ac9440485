"""Asks SQL questions about messages. Needs the extra tickwheel[query]. Run: python examples/query.py"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel


async def main() -> None:
    """Three messages in three states."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.send("orders", b"later", delay=timedelta(days=1))
            await client.send_many("orders", [b"one", b"two"])
            async with client.subscribe("orders", group="billing") as subscription:
                await (await anext(subscription)).ack(confirm=True)
                result = await client.query(
                    "select state, count(*) as n from orders group by state order by state"
                )
            for row in result.dicts():
                print(row["state"], row["n"])


if __name__ == "__main__":
    anyio.run(main)
