"""The pages of the project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from tickwheel.django.health import health

urlpatterns = [path("admin/", admin.site.urls), path("health/tasks/", health)]
