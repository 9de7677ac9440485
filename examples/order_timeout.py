"""Cancels orders that are not paid in time: a message a while ahead, taken back when the payment comes.

Run: python examples/order_timeout.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel

PAY_WITHIN = timedelta(seconds=1)


async def main() -> None:
    """Places two orders, pays one, and waits for the timeout of the other."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            for order in ("order-1", "order-2"):
                await client.send("timeouts", order.encode(), key=order, delay=PAY_WITHIN)
            # The payment of order-1 comes. The answer says whether it came before the timeout.
            print("order-1 paid, timeout", await client.cancel("timeouts", key="order-1"))
            async with client.subscribe("timeouts", group="orders") as subscription:
                message = await anext(subscription)
                print(message.body.decode(), "was not paid: cancelled")
                await message.ack()
            print("order-2 paid too late, timeout", await client.cancel("timeouts", key="order-2"))


if __name__ == "__main__":
    anyio.run(main)
