"""Celery on Tickwheel: tasks that wait are rescheduled and revoked, and beat leaves its entries with the broker.

Run: python examples/celery_schedules.py (pip install 'tickwheel[celery]')
"""

import tempfile
from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.schedules import crontab

import tickwheel
import tickwheel.celery
from tickwheel.celery.beat.scheduler import TickwheelScheduler


def main() -> None:
    """Without a worker: what waits stays where it is."""
    with tempfile.TemporaryDirectory() as directory, tickwheel.embedded(directory) as broker:
        app = Celery("shop", broker=broker.url, control="tickwheel.celery.control:Control")

        @app.task(name="shop.remind")
        def remind(order: str) -> None:
            print("remind of", order)

        first = remind.apply_async(("order 17",), eta=datetime(2031, 5, 1, 7, tzinfo=UTC))
        second = remind.apply_async(("order 18",), eta=datetime(2031, 5, 1, 8, tzinfo=UTC))
        print("reschedule:", tickwheel.celery.reschedule(app, first.id, datetime(2032, 1, 1, tzinfo=UTC)))
        print("revoke:", app.control.revoke(second.id)[second.id])
        print("revoke again:", app.control.revoke(second.id)[second.id])
        for task in tickwheel.celery.scheduled(app):
            print("waits:", task.name, task.args, "until", task.eta.date())

        # What `celery beat -S tickwheel` does.
        app.conf.timezone = "Europe/Paris"
        app.conf.beat_schedule = {
            "report": {"task": "shop.report", "schedule": crontab(hour=6, minute=30)},
            "poll": {"task": "shop.poll", "schedule": timedelta(seconds=10)},
        }
        beat = TickwheelScheduler(app)
        beat.tick()
        beat.close()
        with broker.sync_client() as client:
            report, poll = client.schedule("celery.report"), client.schedule("celery.poll")
            print("the broker sends a report at:", report.cron, report.tz)
            print("the broker polls every:", poll.every)


if __name__ == "__main__":
    main()
