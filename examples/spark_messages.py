"""Sends a DataFrame's rows, then asks Spark what became of them. Run: python examples/spark_messages.py

It needs pip install 'tickwheel[spark]' and Java 17 or newer (`tickwheel pipeline doctor` says what is missing).
"""

import tempfile
from pathlib import Path

import tickwheel
from tickwheel.spark import conditions, session


def main() -> None:
    """A thousand reminders, a hundred of them due: these are delivered, and half of them acked."""
    spark = session(
        master="local[1]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    reminders = spark.sql("""
        select concat('customer-', id) as key, concat('call customer ', id) as body,
               if(id < 100, now(), timestamp'2031-05-01T09:00:00Z') as deliver_at
        from range(1000)
    """)
    with tempfile.TemporaryDirectory() as folder, tickwheel.embedded(Path(folder, "data")) as broker:
        sink = reminders.write.format("tickwheel").mode("append").option("url", broker.url)
        sink.option("topic", "reminders").save()
        sink.save()  # a second time changes nothing: the keys are there
        with broker.sync_client() as client, client.subscribe("reminders", "callers") as subscription:
            for number in range(100):
                message = subscription.receive(timeout=20)
                if number % 2:
                    message.ack(confirm=True)
            source = spark.read.format("tickwheel").option("columns", "state,key,deliver_at")
            states = source.load(f"{folder}/data").groupBy("state").count().orderBy("state").collect()
            print(", ".join(f"{row['count']} {row['state']}" for row in states))
            acked = source.option("filters", conditions(("state", "=", "acked"))).load(f"{folder}/data")
            print(f"acked and due by now: {acked.where('deliver_at <= now()').count()}")
            events = spark.read.format("tickwheel").option("table", "events").load(f"{folder}/data")
            late = events.where("event = 'delivered' and epoch = 1 and time < deliver_at").count()
            print(f"delivered early: {late}")
    spark.stop()


if __name__ == "__main__":
    main()
