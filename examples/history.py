"""Tells the life of a message that failed once.

Run: python examples/history.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel


async def main() -> None:
    """An invoice is sent for later, fails, and is delivered again."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            sent = await client.send("invoices", b"17", key="invoice-17", delay=timedelta(milliseconds=200))
            wait = timedelta(seconds=20)
            (first,) = await client.fetch("invoices", "billing", wait=wait)
            await first.nack(timedelta(milliseconds=100), error="card refused")
            (second,) = await client.fetch("invoices", "billing", wait=wait)
            await second.ack(confirm=True)
            history = await client.history("invoices", key="invoice-17")
            assert history is not None
            assert history.id == sent.id
            for event in history.events:
                if not event.computed:
                    print(" ".join(filter(None, (event.event, event.group, event.error))))
            print("complete:", history.is_complete)


if __name__ == "__main__":
    anyio.run(main)
