"""Django's tasks with an outbox: two days of the shop in examples/django_shop.

A task exists if and only if the transaction that enqueued it has committed; until it runs it can be cancelled or
rescheduled. Needs ``pip install 'tickwheel[django]'``; docs/how-to/django-tasks.md explains the project.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import django
from django.core.management import call_command
from django.db import connections, transaction

from tickwheel import embedded

SHOP = Path(__file__).resolve().parent / "django_shop"


def main() -> None:
    """Places orders, pays one, and runs the tasks."""
    with tempfile.TemporaryDirectory() as folder, embedded(Path(folder, "broker")) as broker:
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        os.environ["SHOP_DATABASE"] = str(Path(folder, "shop.sqlite"))
        os.environ["TICKWHEEL_URL"] = broker.url
        sys.path.insert(0, str(SHOP))
        django.setup()
        # With DEBUG, Django 6 logs on the console that a task begins and ends.
        logging.getLogger("django.tasks").setLevel(logging.WARNING)
        call_command("migrate", verbosity=0)
        trade()
        connections.close_all()


def trade() -> None:
    """What happens in the shop."""
    orders = importlib.import_module("shop.orders")
    with transaction.atomic():
        orders.place()
        transaction.set_rollback(True)  # no order, so no reminder

    paid, late = orders.place(), orders.place()
    print("the reminder of the one that is paid:", orders.pay(paid))
    call_command("tickwheel_relay", "--once")
    print("the reminder of the other one, now:", orders.postpone(late, days=0))
    work(2)


def work(count: int) -> None:
    """Runs the worker until so many letters are written."""
    letters = importlib.import_module("shop.models").Letter.objects

    def stop() -> None:
        while letters.count() < count:
            time.sleep(0.05)
        connections.close_all()
        os.kill(os.getpid(), signal.SIGTERM)  # as a deployment does

    threading.Thread(target=stop, daemon=True).start()
    call_command("tickwheel_worker", "letters", "--threads", "1")
    for letter in letters.order_by("text"):
        print(letter)


if __name__ == "__main__":
    main()
