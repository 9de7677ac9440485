"""Gives disk space back: what every group has acked goes, what is still to come stays. Run: python examples/purge.py

The broker runs inside this process; against a daemon, `tickwheel purge` does the same from the shell.
"""

import tempfile
from datetime import timedelta

import tickwheel


def main() -> None:
    """Ten thousand letters are sent, delivered and acked; one is for next year."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory) as broker,
        broker.sync_client() as client,
    ):
        client.create_topic("letters", purge_after=timedelta(hours=1))
        client.send_many("letters", [b"hello " * 100] * 10_000)
        client.send("letters", b"happy new year", delay=timedelta(days=365))
        with client.subscribe("letters", "postman") as subscription:
            for number, message in enumerate(subscription, 1):
                message.ack()
                if number == 10_000:
                    break
        print(f"purged within the hour: {client.purge().purged_messages}")

        client.set_topic("letters", purge_after=0)  # for those who do not want to wait for an hour
        plan = client.purge(dry_run=True)
        print(f"would be purged: {plan.purged_messages}, would be moved: {plan.moved_messages}")
        done = client.purge()
        print(f"purged: {done.purged_messages}, space of the log is free again: {done.freed_bytes > 0}")
        for letter in client.browse("letters"):
            print(f"still there: {letter.body.decode()}")


if __name__ == "__main__":
    main()
