"""Finds a group that was made by a typing mistake, and lets another one begin anew. Run: python examples/groups.py"""

import tempfile

import anyio

import tickwheel


async def read(client: tickwheel.Client, group: str, count: int) -> list[str]:
    """Takes and acks so many orders."""
    bodies = []
    async with client.subscribe("orders", group) as subscription:
        while len(bodies) < count:
            message = await anext(subscription)
            bodies.append(f"{message.body.decode()}, delivery {message.epoch}")
            await message.ack(confirm=True)
    return bodies


async def main() -> None:
    """Reads three orders with the right group, and none with the wrong one."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.send_many("orders", [b"17", b"18", b"19"], keys=["o17", "o18", "o19"])
            async with client.subscribe("orders", "biling", credit=1) as subscription:
                print("made:", subscription.created_group)
            print("read:", await read(client, "billing", 3))
            for group in await client.groups("orders"):
                print(f"{group.name}: {group.backlog} to do, {group.subscribers} subscribers")
            print("deleted, with a backlog of", await client.delete_group("orders", "biling"))
            print("again:", await client.seek_group("orders", "billing", to="earliest"))
            print("read:", await read(client, "billing", 3))
            order = await client.message("orders", key="o18")
            assert order is not None
            print(f"order {order.body.decode()}:", [f"{one.group} {one.state}" for one in order.groups])


if __name__ == "__main__":
    anyio.run(main)
