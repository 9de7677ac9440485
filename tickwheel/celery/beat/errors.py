"""Why an entry stays with beat."""

from __future__ import annotations


class NotOnBroker(Exception):
    """A schedule of the broker cannot say what an entry of ``beat_schedule`` means; the text goes on after
    "because"."""
