"""Which warnings are errors: all but deprecations, which a new release of another package may bring at any time.

``TICKWHEEL_WARNINGS=error`` makes errors of deprecations, too; a nightly run sets it. `pyproject.toml` has the rule of
pytest's own process, and this module the rule of the processes that tests start.
"""

from __future__ import annotations

import os
import warnings
from typing import Final

_VALUE: Final = os.environ.get("TICKWHEEL_WARNINGS", "")
if _VALUE not in ("", "error"):
    raise ValueError(f"TICKWHEEL_WARNINGS is {_VALUE!r}: it is `error`, or not set")

ARE_ALL_ERRORS: Final = _VALUE == "error"
DEPRECATIONS: Final = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


def filters_of_a_process(*others: str) -> str:
    """What a process gets as PYTHONWARNINGS. ``others``: filters that come after, and so before."""
    ignored = () if ARE_ALL_ERRORS else tuple(f"ignore::{kind.__name__}" for kind in DEPRECATIONS)
    return ",".join(("error", *ignored, *others))


def apply_filters() -> None:
    """Do in this process what the variable does at the start of one."""
    warnings.simplefilter("error")
    if not ARE_ALL_ERRORS:
        for kind in DEPRECATIONS:
            warnings.simplefilter("ignore", kind)
