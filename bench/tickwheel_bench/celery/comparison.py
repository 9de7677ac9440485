"""The same with each broker that this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tickwheel_bench.celery.brokers import installed
from tickwheel_bench.celery.figures import FIGURES


def celery(directory: Path, scale: float) -> dict[str, Any]:
    """Figures by name, each with a value for each broker."""
    found: dict[str, Any] = {}
    for measured, figure in FIGURES.items():
        for name, kind in installed().items():
            for what, value in figure(kind, directory / f"{measured}-{name}", scale).items():
                found.setdefault(what, {})[name] = value
    return found
