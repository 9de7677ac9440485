"""Moves acked messages to Parquet, brings a few back, and spreads a backlog. Run: python examples/spark_archive.py

It needs pip install 'tickwheel[spark]' and Java 17 or newer (`tickwheel pipeline doctor` says what is missing).
"""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tickwheel
from tickwheel.spark import archive_messages, reschedule_messages, restore_messages, session

MAY = datetime(2024, 5, 1, tzinfo=UTC)


def main() -> None:
    """Thirty orders of three days in May, all acked; and a thousand reminders that are due in one millisecond."""
    spark = session(
        master="local[1]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    with tempfile.TemporaryDirectory() as folder, tickwheel.embedded(Path(folder, "data")) as broker:
        archive, url = Path(folder, "archive"), broker.url
        with broker.sync_client() as client:
            client.create_topic("orders", purge_after=timedelta(days=365 * 100))  # nothing goes unarchived
            days = [MAY + timedelta(days=number % 3) for number in range(30)]
            client.send_many("orders", [b"paid"] * 30, deliver_at=days)
            with client.subscribe("orders", "billing") as subscription:
                for _ in range(30):
                    subscription.receive(timeout=20).ack(confirm=True)

            report = archive_messages(spark, archive, older_than=timedelta(), url=url)
            print(f"archived: {report.messages} in {report.files} files, {report.dropped} dropped")
            second_of_may = spark.read.parquet(str(archive)).where("date = '2024-05-02'")
            print(f"read with Spark alone: {second_of_may.count()}")

            back = restore_messages(spark, archive, since=MAY, until=MAY + timedelta(days=1), url=url)
            print(f"the first of May: {back.messages} to {', '.join(back.topics)}")

            client.send_many("reminders", [b"call"] * 1_000, delay=timedelta(hours=1))
            spread = reschedule_messages(spark, "topic = 'reminders'", spread=timedelta(hours=2), url=url)
            print(f"rescheduled: {spread.done} of {spread.selected}")
    spark.stop()


if __name__ == "__main__":
    main()
