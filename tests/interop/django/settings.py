"""Settings of a project that has nothing but Django's tests of tasks."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = Path(os.environ["TICKWHEEL_SUITE"])

SECRET_KEY = "not secret"
USE_TZ = True
INSTALLED_APPS = ["tickwheel.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(_HOME / "db.sqlite"),
        # A file: tests and tasks have threads, and connections, of their own.
        "TEST": {"NAME": str(_HOME / "test.sqlite")},
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
TEST_RUNNER = "tests.interop.django.pointed.Runner"
