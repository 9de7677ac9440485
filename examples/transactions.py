"""Consumes an order and produces its invoice and reminder, exactly once. And a prepared message.

Run: python examples/transactions.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel
from tickwheel.errors import TransactionRefused


async def main() -> None:
    """One transaction that commits, one that is refused as a whole, one message in two steps."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            await client.send("orders", b"17")
            async with client.subscribe("orders", group="billing") as subscription:
                order = await anext(subscription)
                async with client.transaction() as tx:
                    tx.ack(order)
                    tx.send("invoices", b"invoice for 17", key="invoice-17")
                    tx.send("reminders", b"17 is not paid", key="order-17", delay=timedelta(days=30))
            print("invoices:", len(await client.browse("invoices")))

            try:
                async with client.transaction() as tx:
                    tx.cancel("reminders", key="order-17")
                    tx.send("invoices", b"once more", key="invoice-17")
            except TransactionRefused as error:
                print("refused:", error.message)
            print("reminders still planned:", len(await client.browse("reminders", states="scheduled")))

            # Prepared: safe at once, delivered once the work that it belongs to is done, or never.
            prepared = await client.prepare("shipments", b"order 17")
            await prepared.commit()
            async with client.subscribe("shipments") as subscription:
                print("shipped:", (await anext(subscription)).body.decode())


if __name__ == "__main__":
    anyio.run(main)
