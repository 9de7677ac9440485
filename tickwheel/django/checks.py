"""System checks beside those of each backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.core import checks

from tickwheel.django.backends import tickwheel_backends
from tickwheel.django.framework import IS_BUILT_IN, InvalidTaskBackend


def check_without_their_app(app_configs: Any = None, **kwargs: Any) -> Iterable[checks.CheckMessage]:
    """The package ``django-tasks`` has each backend checked only if it is an installed app."""
    if IS_BUILT_IN or apps.is_installed("django_tasks"):
        return
    try:
        for backend in tickwheel_backends():
            yield from backend.check()
    except InvalidTaskBackend as error:
        yield checks.Error(str(error), hint="Correct TASKS.", id="tickwheel.E001")


def check_schedules(app_configs: Any = None, **kwargs: Any) -> Iterable[checks.CheckMessage]:
    """What is wrong with ``TICKWHEEL_SCHEDULES``, as far as it can be said without a broker."""
    from tickwheel.django.schedules import declared_schedules

    try:
        _, troubles = declared_schedules()
    except InvalidTaskBackend:
        return  # this is said elsewhere
    for name, trouble in troubles:
        place = f"TICKWHEEL_SCHEDULES[{name!r}]" if name else "TICKWHEEL_SCHEDULES"
        yield checks.Error(f"{place}: {trouble.text}", hint=trouble.hint, obj=place, id="tickwheel.E010")
