"""A deprecation ends a nightly run alone; every other warning ends each run."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.support.run.warned import ARE_ALL_ERRORS, DEPRECATIONS, filters_of_a_process

ROOT = Path(__file__).resolve().parents[2]
SHOWN = (*DEPRECATIONS, np.exceptions.VisibleDeprecationWarning)
OTHERS = (UserWarning, RuntimeWarning, ResourceWarning, SyntaxWarning, pytest.PytestWarning)
WARN = "import warnings; warnings.warn('news', {}); print('goes on')"


@pytest.mark.parametrize("kind", [*SHOWN, *OTHERS])
def test_what_a_test_meets(kind: type[Warning]) -> None:
    if kind in SHOWN and not ARE_ALL_ERRORS:
        with warnings.catch_warnings(record=True) as met:
            warnings.warn("news", kind, stacklevel=1)
        assert [one.category for one in met] == [kind]
    else:
        with pytest.raises(kind, match="news"):
            warnings.warn("news", kind, stacklevel=1)


@pytest.mark.parametrize("kind", [DeprecationWarning, FutureWarning, ResourceWarning])
def test_what_a_process_meets(kind: type[Warning]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WARN.format(kind.__name__)],
        env={**os.environ, "PYTHONWARNINGS": filters_of_a_process()},
        capture_output=True,
        text=True,
        check=False,
    )
    if kind in DEPRECATIONS and not ARE_ALL_ERRORS:
        assert (ended.stdout, ended.stderr) == ("goes on\n", "")
    else:
        assert f"{kind.__name__}: news" in ended.stderr


@pytest.mark.skipif(ARE_ALL_ERRORS, reason="this is such a run")
def test_a_nightly_run_meets_all() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_warned.py"],
        cwd=ROOT,
        env={**os.environ, "TICKWHEEL_WARNINGS": "error", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "13 passed, 1 skipped" in ended.stdout


def test_a_value_that_means_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import tests.support.run.warned"],
        cwd=ROOT,
        env={**os.environ, "TICKWHEEL_WARNINGS": "errors"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TICKWHEEL_WARNINGS is 'errors'" in ended.stderr
