"""Splits a topic by the hash of its keys, one consumer for each part. Run: python examples/sharded_consumers.py"""

import tempfile

import anyio

import tickwheel


async def consume(client: tickwheel.Client, shard: str, count: int) -> set[str | None]:
    """The keys that one part holds."""
    keys = set()
    async with client.subscribe("events", group="workers", shard=shard) as subscription:
        for _ in range(count):
            message = await anext(subscription)
            keys.add(message.key)
            await message.ack()
    return keys


async def main() -> None:
    """A hundred keys over two shards; the same key always goes to the same one."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            topic = await client.create_topic("events", shards=2)
            print("shards:", *topic.shards)
            await client.send_many("events", [b"x"] * 100, keys=[f"user-{n}" for n in range(100)])
            sizes = {one.name: one.messages for one in await client.topics() if one.shard_of == "events"}
            found = [await consume(client, shard, sizes[f"events/{shard}"]) for shard in topic.shards]
            print("every key once:", len(found[0] | found[1]) == 100 and not found[0] & found[1])


if __name__ == "__main__":
    anyio.run(main)
