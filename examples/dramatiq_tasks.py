"""Dramatiq with Tickwheel as its broker: delayed, retried, taken back. Run: python examples/dramatiq_tasks.py
(needs pip install 'tickwheel[dramatiq]')

Broker and worker are started here; usually they are `tickwheel serve`, and `dramatiq` with the module of the actors.
"""

import logging
import tempfile
from datetime import timedelta

import dramatiq

import tickwheel
from tickwheel.dramatiq import TickwheelBroker

PATIENCE_MS = 60_000


def main() -> None:
    """Letters for orders."""
    logging.getLogger("dramatiq").setLevel(logging.CRITICAL)  # a failure is shown here as a line of ours
    with tempfile.TemporaryDirectory() as directory, tickwheel.embedded(directory) as server:
        broker = TickwheelBroker(server.url)
        dramatiq.set_broker(broker)
        refusals = ["the mail server is busy"]

        @dramatiq.actor(queue_name="letters", max_retries=3, min_backoff=100)
        def write(order: int, what: str) -> None:
            if refusals:
                print(f"order {order}: {refusals[0]}")
                raise ConnectionRefusedError(refusals.pop())
            print(f"order {order}: {what}")

        @dramatiq.actor(queue_name="letters", max_retries=0)
        def charge(card: str) -> None:
            raise ValueError(f"{card} is no card")

        # A year waits on the broker's disk, not in a worker's memory.
        reminder = write.send_with_options(args=(17, "how was it?"), delay=timedelta(days=365))
        print("waiting:", broker.unfinished("letters"))
        print("taken back:", broker.cancel(reminder))

        worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
        worker.start()
        try:
            write.send(17, "thanks")
            charge.send("1234")
            broker.join("letters", timeout=PATIENCE_MS)
        finally:
            worker.stop()
        with server.sync_client() as client:
            for letter in client.browse(f"{broker.topic_of('letters')}.dead"):
                print("dead:", dramatiq.Message.decode(letter.body))
        broker.close()


if __name__ == "__main__":
    main()
