"""Shared test set-up: how much is tried, where a run writes, and which tests go first and beside each other."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clients import forking
from tests.support.run import crashes
from tests.support.run.order import LongestFirst, longest_first
from tests.support.run.profile import CI, PROFILE, SOAK, amount, has_its_day, is_left_out, today
from tests.support.run.run_folder import RunFolder
from timerlog.files.holes import Holes

# A write to a page of a table that was given back to the disk ends the process: it may not happen.
Holes.are_read_only = True

# No deadline: a shared machine may stall any single example.
settings.register_profile(
    PROFILE,
    deadline=None,
    max_examples=amount("examples"),
    suppress_health_check=[HealthCheck.too_slow] if PROFILE == SOAK else [],
)
settings.load_profile(PROFILE)

_RUNS_IN = {"ci": (CI, SOAK), "soak": (SOAK,)}
"""Markers, and the profiles that run what they mark."""
_FOLDER = pytest.StashKey[RunFolder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cluster`: see `tests/support/cluster/in_a_cluster.py`."""
    parser.addoption(
        "--cluster",
        default=0,
        type=int,
        metavar="NODES",
        help="run the tests of tests/integration whose server can be a cluster against one, of 1 or 2 nodes",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run, before pytest asks where temporary files go."""
    # A shell starts what is in its background with Ctrl-C ignored, and so would every program that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(crashes)
    if hasattr(config, "workerinput"):
        return
    folder = config.stash[_FOLDER] = RunFolder()
    if config.option.basetemp is None:
        config.option.basetemp = str(folder.path / "t")  # short: sockets in it have short paths


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays to the end, so it is never searched for garbage: that takes a third of this step, and
    then half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _process_of_its_own() -> Iterator[None]:
    """What a test sets for its process stays for all that come after it and for what they start. With another priority
    they would be late; Ctrl-C does with the handler that Spark leaves what it never does in a program without."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what forks, and remove the folder unless there is something to look at."""
    forking.end()
    folder = session.config.stash.get(_FOLDER, None)
    if folder is not None:
        folder.end(keep=session.testsfailed > 0)


def pytest_report_header() -> str:
    """What repeats this run on another day."""
    return f"tickwheel: TICKWHEEL_PROFILE={PROFILE} TICKWHEEL_DAY={today()}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """In place of what `--dist` says."""
    return LongestFirst(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this profile leaves to others, and begin with what takes long."""
    longest_first(items)
    is_asked_for = bool(config.option.file_or_dir or config.option.keyword)
    for marker, profiles in _RUNS_IN.items():
        if PROFILE not in profiles:
            skip = pytest.mark.skip(reason=f"runs with TICKWHEEL_PROFILE={profiles[0]}")
            for item in items:
                if item.get_closest_marker(marker) is not None:
                    item.add_marker(skip)
    for item in items:
        if not is_asked_for and not has_its_day(item.nodeid):
            item.add_marker(pytest.mark.skip(reason="another day, and when it is asked for"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            parameters = item.callspec.params.values()
            if is_left_out(f"{item.path.name}::{item.originalname}", parameters):
                item.add_marker(pytest.mark.skip(reason="another day, and with TICKWHEEL_PROFILE=ci"))
