"""Settings of the shop."""

import os
from datetime import timedelta
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "for an example"
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", BASE_DIR / "shop.sqlite"),
        # The relay and the workers write as well: none reads first and finds the database changed when it writes.
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode=WAL",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
}

INSTALLED_APPS = ["shop", "tickwheel.django"]
TASKS = {
    "default": {
        "BACKEND": "tickwheel.django.TickwheelBackend",
        "QUEUES": ["default", "letters"],
        "OPTIONS": {
            "url": os.environ.get("TICKWHEEL_URL", "tickwheel://127.0.0.1:7411"),
            "via": "outbox",
            "attempts": 5,
            "delays": [timedelta(seconds=10), timedelta(minutes=10)],
        },
    }
}
TICKWHEEL_SCHEDULES = {
    "count-orders": {"task": "shop.tasks.count_orders", "cron": "0 3 * * *", "tz": "Europe/Paris"},
}
