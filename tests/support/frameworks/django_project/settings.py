"""What a project has in its settings; the environment says which database, which broker, and by which way."""

from __future__ import annotations

import importlib
import json
import os

_PLACE = "tests.support.frameworks.django_project"
_OPTIONS = json.loads(os.environ.get("TICKWHEEL_TEST_OPTIONS", "{}"))

SECRET_KEY = "not secret"
DEBUG = False
USE_TZ = True
TIME_ZONE = "Europe/Paris"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = f"{_PLACE}.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "tickwheel.django",
    _PLACE,
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
DATABASES = {
    "default": json.loads(
        os.environ.get(
            "TICKWHEEL_TEST_DATABASE", '{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}'
        )
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {
        "BACKEND": "tickwheel.django.TickwheelBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"url": os.environ.get("TICKWHEEL_URL", ""), **_OPTIONS},
    },
    "any": {"BACKEND": "tickwheel.django.TickwheelBackend", "QUEUES": [], "OPTIONS": {"prefix": "any."}},
}
TICKWHEEL_SCHEDULES = json.loads(os.environ.get("TICKWHEEL_TEST_SCHEDULES", "{}"))
if os.environ.get("DJANGO_PYMYSQL"):
    import pymysql

    pymysql.install_as_MySQLdb()
if os.environ.get("TICKWHEEL_TEST_IMPORT"):  # code that a test changes
    importlib.import_module(os.environ["TICKWHEEL_TEST_IMPORT"])
