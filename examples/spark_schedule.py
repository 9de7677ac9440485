"""Schedules a DataFrame in one piece, all rows or none, without sending each. Run: python examples/spark_schedule.py

It needs pip install 'tickwheel[spark]' and Java 17 or newer (`tickwheel pipeline doctor` says what is missing).
"""

import tempfile
from pathlib import Path

import tickwheel
from tickwheel.spark import RowsRefused, schedule_messages, session


def main() -> None:
    """A hundred thousand reminders, two of which cannot be scheduled."""
    spark = session(
        master="local[1]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    reminders = spark.sql("""
        select concat('customer-', if(id = 77777, 1, id)) as key, concat('call customer ', id) as body,
               if(id = 5, null, timestamp'2031-05-01T09:00:00Z' + make_dt_interval(0, 0, 0, id % 3600)) as deliver_at
        from range(100000)
    """)
    with tempfile.TemporaryDirectory() as folder, tickwheel.embedded(Path(folder, "data")) as broker:
        try:
            schedule_messages(reminders, url=broker.url, topic="reminders")
        except RowsRefused as error:
            print(f"refused: {error.result.counts}")
        result = schedule_messages(reminders, url=broker.url, topic="reminders", max_rejects=2, job="may")
        print(f"scheduled {result.messages}; left out: {result.counts}")
        again = schedule_messages(reminders, url=broker.url, topic="reminders", max_rejects=2, job="may")
        print(f"repeated: {again.repeated}")
        with broker.sync_client() as client:
            print(f"cancel: {client.cancel('reminders', key='customer-42')}")
    spark.stop()


if __name__ == "__main__":
    main()
