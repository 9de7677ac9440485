"""The broker's own log, as people read it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from tickwheel_broker import logs
from tickwheel_broker.config.settings import Settings


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Leaves the loggers as they were."""
    root = logging.getLogger("tickwheel.broker")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_nobody_writes_a_line_of_the_log_from_outside(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format=log_format, log_level="debug"), stream)
    forged = "app\n12:00:00.000\u2028info\x1b[2Jstarted\r"
    logs.get_logger("connection").warning("greeted", client=forged, plain="two words")
    (line,) = stream.getvalue().split("\n")[:-1]
    assert not set(line) & {"\x1b", "\r", "\u2028"}
    assert "two words" in line


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class Limited:
    """A logger with a limit of its own, whose time a test moves."""

    def __init__(self, name: str = "tickwheel.test.limited") -> None:
        self.now_s = 0.0
        self.limit = logs.LineLimit(lambda: self.now_s)
        self.logger = logging.getLogger(name)
        self.told = Told()
        self.logger.handlers, self.logger.filters = [self.told], [self.limit]
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False


def test_a_line_that_comes_again_and_again_is_limited_and_what_is_left_out_is_counted() -> None:
    limited = Limited()
    for number in range(logs.LINES_AT_ONCE + 70):
        limited.logger.info("refused %d", number)
    assert len(limited.told.records) == logs.LINES_AT_ONCE
    limited.now_s = 1.0
    limited.logger.info("refused %d", 7)
    assert limited.told.records[-1].__dict__["left_out"] == 70
    limited.logger.info("refused %d", 8)
    assert "left_out" not in limited.told.records[-1].__dict__, "it is said once"


def test_each_kind_of_line_has_its_own_limit() -> None:
    limited = Limited()
    for _ in range(2 * logs.LINES_AT_ONCE):
        limited.logger.info("refused")
    limited.logger.error("the disk is full")
    assert limited.told.texts[-1] == "the disk is full"


def test_what_is_left_out_is_told_also_where_no_such_line_follows() -> None:
    limited = Limited()
    for _ in range(logs.LINES_AT_ONCE + 5):
        limited.logger.warning("refused")
    limited.limit.tell()
    assert len(limited.told.records) == logs.LINES_AT_ONCE, "there is no room yet"
    limited.now_s = 1.0
    limited.limit.tell()
    limited.limit.tell()
    assert limited.told.texts[logs.LINES_AT_ONCE :] == ["5 lines were left out: refused"]
    assert limited.told.records[-1].levelno == logging.WARNING
    for _ in range(logs.LINES_AT_ONCE):
        limited.logger.warning("refused")
    left = logs.LINES_AT_ONCE - (int(logs.LINES_PER_S) - 1)
    limited.limit.tell(is_end=True)
    assert limited.told.texts[-1] == f"{left} lines were left out: refused"


def test_lines_for_those_who_look_for_a_defect_are_not_limited() -> None:
    limited = Limited()
    for _ in range(3 * logs.LINES_AT_ONCE):
        limited.logger.debug("connection greeted")
    assert len(limited.told.records) == 3 * logs.LINES_AT_ONCE


def test_texts_that_are_put_together_take_bounded_memory_and_count_together() -> None:
    limited = Limited()
    for number in range(5_000):
        limited.logger.info(f"refused {number}")
    assert len(limited.told.records) == 1_000 + logs.LINES_AT_ONCE
    assert len(limited.limit._kinds) == 1_001


def test_all_that_a_process_writes_is_limited_also_loggers_of_others() -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format="json", log_level="info"), stream, name="tickwheel.test")
    logger = logging.getLogger("tickwheel.test.web")
    for number in range(logs.LINES_AT_ONCE + 100):
        logger.warning("a call failed: %d", number)
    lines = stream.getvalue().splitlines()
    assert logs.LINES_AT_ONCE <= len(lines) < logs.LINES_AT_ONCE + 100


def test_each_logger_of_the_broker_is_limited_but_for_the_audit_log_which_limits_itself() -> None:
    told = Told()
    root = logging.getLogger("tickwheel.broker")
    root.addHandler(told)
    root.setLevel("INFO")
    for _ in range(logs.LINES_AT_ONCE + 500):
        logs.get_logger("test-of-limits").info("request refused", code="x")
        logs.get_logger("audit").info("request", code="x")
    names = [record.name for record in told.records]
    assert logs.LINES_AT_ONCE <= names.count("tickwheel.broker.test-of-limits") < logs.LINES_AT_ONCE + 500
    assert names.count("tickwheel.broker.audit") == logs.LINES_AT_ONCE + 500
