"""The pages of the shop."""

from django.urls import path

from tickwheel.django.health import health

urlpatterns = [path("health/tasks/", health)]
