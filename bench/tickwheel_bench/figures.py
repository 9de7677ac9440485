"""How figures are shown: percentiles, how late messages were, and how much later beside something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_ENDS: Final = {"min": 0.0, "max": 100.0}


def percentiles(values: npt.ArrayLike, *names: str, digits: int = 3) -> dict[str, float]:
    """Returns percentiles by their names: ``min``, ``p50``, ``p99.9``, ``max``."""
    shares = [_ENDS[name] if name in _ENDS else float(name[1:]) for name in names]
    found = np.percentile(np.asarray(values, np.float64), shares)
    return {name: round(float(value), digits) for name, value in zip(names, found, strict=True)}


def late_figures(late_ms: npt.ArrayLike, *names: str) -> dict[str, Any]:
    """Counts messages that came too early, and returns percentiles of how late all were."""
    late_ms = np.asarray(late_ms, np.float64)
    return {"early": int((late_ms < 0).sum()), "late_ms": percentiles(late_ms, *names)}


def p99_later_ms(beside: Mapping[str, Any], without: Mapping[str, Any]) -> float:
    """Returns how much later the 99th percentile is beside something else."""
    return round(float(beside["late_ms"]["p99"] - without["late_ms"]["p99"]), 3)


def median_later_ms(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Returns the median of `p99_later_ms` of several rounds."""
    return round(float(np.median([each["p99_later_ms"] for each in rounds])), 3)
