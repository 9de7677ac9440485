"""Schedules 100,000 messages with a time each, and takes them in batches. Run: python examples/bulk.py

`send_many` and `batches` cost Python a call for each batch, not for each message. This is the blocking client; the
asynchronous one has the same names.
"""

import tempfile
import time
from array import array

import tickwheel

COUNT = 100_000
BATCH = 1_000


def main() -> None:
    """Sends, then receives."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory) as broker,
        broker.sync_client() as client,
    ):
        in_half_a_second_ms = time.time_ns() // 1_000_000 + 500
        for start in range(0, COUNT, BATCH):
            numbers = range(start, start + BATCH)
            due_ms = array("q", (in_half_a_second_ms + n // 100 for n in numbers))
            results = client.send_many("readings", [b"%d" % n for n in numbers], deliver_at=due_ms)
            results.raise_for_errors()
        received = 0
        with client.subscribe("readings", credit=10_000, batch=BATCH) as subscription:
            for batch in subscription.batches():
                batch.ack()
                received += len(batch)
                if received == COUNT:
                    break
        print(f"received {received:,} of {COUNT:,}")


if __name__ == "__main__":
    main()
