"""Asks with SQL how far a topic is. Run: python examples/query.py  (needs pip install 'tickwheel[query]')

The broker runs inside this process; `client.query` is the same against a daemon.
"""

import tempfile
from datetime import timedelta

import tickwheel


def main() -> None:
    """Sends four orders, acks two, asks."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory) as broker,
        broker.sync_client() as client,
    ):
        for name in ("ada", "bob"):
            client.send("orders", b"10", key=name)
        client.send("orders", b"20", key="dave", delay=timedelta(hours=1), headers={"tier": "gold"})
        client.send("orders", b"30", key="carol", delay=timedelta(days=1), headers={"tier": "gold"})
        with client.subscribe("orders", "billing") as subscription:
            for _ in range(2):
                next(iter(subscription)).ack()
        states = client.query(
            "select state, count(*), min(time_next) from orders group by state order by state"
        )
        for state, count, time_next in states:
            print(f"{state}: {count}" + (", the next one later today or tomorrow" if time_next else ""))
        gold = client.query("""
            select key, decode(body) as euros from orders
            where state = 'scheduled' and headers->>'tier' = 'gold' order by time_next desc limit 1
        """)
        for row in gold.dicts():
            print(f"waits longest: {row['key']}, {row['euros']} euros")


if __name__ == "__main__":
    main()
