"""Tests of ``tickwheel.django``: with a project of Django's in this process."""

from __future__ import annotations

from tests.support.frameworks.django_fixtures import *  # noqa: F403
