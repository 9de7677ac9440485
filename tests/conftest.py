"""Shared test set-up: how much is tried, where a run writes, and which tests go first and beside each other."""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clients import forking
from tests.support.run import crashes, lanes, profile
from tests.support.run.order import LongestFirst, longest_first
from tests.support.run.outcomes import Outcomes
from tests.support.run.profile import DRAWS, PROFILE, QUICK, SEED, SOAK, amount
from tests.support.run.run_folder import RunFolder
from tests.support.run.warned import ARE_ALL_ERRORS
from timerlog.files.holes import Holes

# A write to a page of a table that was given back to the disk ends the process: it may not happen.
Holes.are_read_only = True

# No deadline: a shared machine may stall any single example.
settings.register_profile(
    PROFILE,
    deadline=None,
    derandomize=not DRAWS,
    database=None if not DRAWS else settings().database,
    max_examples=amount("examples"),
    suppress_health_check=[HealthCheck.too_slow] if PROFILE == SOAK else [],
)
settings.load_profile(PROFILE)

JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For what Spark starts: its second compiler, parallel collector and verifier pay only in what outlives a test."""

_FOLDER = pytest.StashKey[RunFolder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cluster`: see `tests/support/cluster/in_a_cluster.py`; the others: see their help."""
    parser.addoption(
        "--cluster",
        default=0,
        type=int,
        metavar="NODES",
        help="run the tests of tests/integration whose server can be a cluster against one, of 1 or 2 nodes",
    )
    parser.addoption(
        "--lane",
        choices=lanes.LANES,
        metavar="LANE",
        help="run the tests of one lane of `make test`: see tests/support/run/lanes.py",
    )
    parser.addoption(
        "--outcomes",
        type=Path,
        metavar="FOLDER",
        help="write how tests ended, and processor seconds by file: see tests/support/run/outcomes.py",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run, before pytest asks where temporary files go."""
    # A shell starts what is in its background with Ctrl-C ignored, and so would every program that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not DRAWS:
        os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
    config.pluginmanager.register(crashes)
    if ARE_ALL_ERRORS:
        config.addinivalue_line("filterwarnings", "error")
    is_worker = hasattr(config, "workerinput")
    folder: Path | None = config.option.outcomes
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = Outcomes(None if is_worker else folder, with_passed=config.option.lane is None)
        config.pluginmanager.register(outcomes)
    if is_worker:
        return
    # Programs meet a disk in every longer profile; functions are not asked for more than files.
    may_be_memory = PROFILE == QUICK or config.option.lane == lanes.FUNCTIONS
    place = config.stash[_FOLDER] = RunFolder(may_be_memory=may_be_memory)
    if config.option.basetemp is None:
        config.option.basetemp = str(place.path / "t")  # short: sockets in it have short paths


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
    """Give back what a test sets for its process: all later tests of the process, and what they start, would have it.

    A process of another priority is late. Ctrl-C with the handler that Spark leaves does what it does in no program
    without Spark. A logger that has become more talkative fills `caplog`; a logger that does not propagate empties it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    before = _loggers()
    yield
    for logger in _loggers():
        level, logger.propagate, logger.handlers[:] = before.get(logger, (logging.NOTSET, True, ()))
        if logger.level != level:  # else it costs a look at all loggers
            logger.setLevel(level)
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


def _loggers() -> dict[logging.Logger, tuple[int, bool, tuple[logging.Handler, ...]]]:
    """Level, propagation and handlers of each logger of the project that exists."""
    known = logging.Logger.manager.loggerDict.items()
    ours = [one for name, one in known if name.startswith("tickwheel") and isinstance(one, logging.Logger)]
    return {logger: (logger.level, logger.propagate, tuple(logger.handlers)) for logger in ours}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what forks, and remove the folder unless there is something to look at."""
    forking.end()
    folder = session.config.stash.get(_FOLDER, None)
    if folder is not None:
        folder.end(keep=session.testsfailed > 0)


def pytest_report_header() -> str:
    """What repeats this run."""
    return f"tickwheel: TICKWHEEL_PROFILE={PROFILE}" + (f" TICKWHEEL_SEED={SEED}" if SEED else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """In place of what `--dist` says."""
    return LongestFirst(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even load what this run does not hold."""
    if is_asked_for(config) or collection_path.suffix != ".py":
        return None
    node = collection_path.relative_to(config.rootpath).as_posix()
    is_held = lanes.may_hold(node, collection_path, config.option.lane) and profile.may_hold(
        node, collection_path
    )
    return None if is_held else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to other profiles and lanes what this run does not hold, and begin with what takes long."""
    longest_first(items)
    is_asked = is_asked_for(config)
    held: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        given = getattr(item, "callspec", None)
        parameters = () if given is None else given.params.values()
        only_on = item.get_closest_marker("only_on")
        means_something = profile.means_something(only_on and only_on.args, parameters)
        is_held = (
            means_something
            and lanes.holds(item.nodeid, marks, config.option.lane)
            and profile.holds(item.nodeid, marks, parameters, is_asked_for=is_asked)
        )
        (held if is_held else left).append(item)
    items[:] = held
    if left:
        config.hook.pytest_deselected(items=left)


def is_asked_for(config: pytest.Config) -> bool:
    """Whether somebody names what runs, by file or keyword."""
    return bool(config.option.file_or_dir or config.option.keyword)
