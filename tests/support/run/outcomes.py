"""A plugin that writes down how tests ended, and what processor time they took.

The process that starts the others hears of every test, and writes into the folder that ``--outcomes`` names: a line for
each test that failed, with what it printed, and a table of processor seconds by file. A run of what failed before
(it has no lane) writes down the successes, too.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

ENDED: Final = "ended.jsonl"
SECONDS: Final = "processor_s.json"


class Outcomes:
    """In each process of a run; ``folder`` is None in those that are told what to run."""

    def __init__(self, folder: Path | None, *, with_passed: bool) -> None:
        self._folder = folder
        self._with_passed = with_passed
        self._seconds: Counter[str] = Counter()
        self._before_s = _processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Add what set-up, call or tear-down took, with the programs that ended meanwhile."""
        report = yield
        now_s = _processor_s()
        report.processor_s, self._before_s = now_s - self._before_s, now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down a failure; in a run of what failed before, a success."""
        if self._folder is None:
            return
        self._seconds[report.nodeid.partition("::")[0]] += getattr(report, "processor_s", 0.0)
        if report.failed or (self._with_passed and report.when == "call"):
            parts = [report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)]
            line = {"test": report.nodeid, "failed": report.failed, "output": "\n".join(filter(None, parts))}
            with (self._folder / ENDED).open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps(line if report.failed else line | {"output": line["output"][-20_000:]}) + "\n"
                )

    def pytest_sessionfinish(self) -> None:
        """Add this run's seconds to the table."""
        if self._folder is not None:
            path = self._folder / SECONDS
            known = Counter(json.loads(path.read_text()) if path.exists() else {})
            path.write_text(
                json.dumps({file: round(s, 2) for file, s in (known + self._seconds).items()}, indent=1)
            )


def _processor_s() -> float:
    """Seconds of this process, and of its children that have ended."""
    return sum(os.times()[:4])
