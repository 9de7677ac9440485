"""A plugin for the suites of others: makes the URLs of Tickwheel known, and writes how each test ended.

A test that was run again counts as it ended last; one with subtests fails if one of them does; what its authors expect
to fail is as good as skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tickwheel.celery

assert tickwheel.celery.TRANSPORT

_ends: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Of each phase of a test."""
    name = report.nodeid
    if report.outcome == "rerun":
        _ends.pop(name, None)
    elif report.failed and not hasattr(report, "wasxfail"):
        _ends[name] = "failed"
    elif hasattr(report, "wasxfail") or report.skipped:
        _ends.setdefault(name, "skipped")
    elif report.when == "call":
        _ends.setdefault(name, "passed")


def pytest_sessionfinish() -> None:
    """Writes the report."""
    Path(os.environ["TICKWHEEL_SUITE_REPORT"]).write_text(json.dumps(_ends))
