"""Structured logs: events with fields, through structlog into the standard `logging` module.

Inside a user's process (`tickwheel.embedded`) nothing is configured here: the events go to the logger
`tickwheel.broker` and the user decides. The daemon calls `configure`.

Whatever a client can cause again and again is told so often only, so that no client fills the disk of the data: each
kind of line has a limit of its own, and a line that comes later says how many were left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

import structlog

from tickwheel_broker.config.settings import Settings

_ROOT = "tickwheel.broker"
_AUDIT = f"{_ROOT}.audit"
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"

LINES_PER_S: Final = 20.0
LINES_AT_ONCE: Final = 200
LEFT_OUT: Final = "lines were left out"
_MOST_KINDS: Final = 1_000
"""Those of others may have texts that are put together; beyond so many all of a logger count together."""


class Bucket:
    """So many lines at once, then so many a second."""

    def __init__(self, rate: float, depth: int, clock: Callable[[], float]) -> None:
        self._rate, self._depth, self._clock = rate, depth, clock
        self._room = float(depth)
        self._at_s = clock()

    def take(self) -> bool:
        """Whether there is room for one more."""
        now_s = self._clock()
        self._room = min(float(self._depth), self._room + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._room < 1:
            return False
        self._room -= 1
        return True


@dataclass(slots=True)
class _Kind:
    logger: str
    level: int
    text: str
    bucket: Bucket
    left_out: int = 0


class LineLimit:
    """Limits lines of each kind: of one logger, with one text before its values are put in. What is of level `debug`
    was asked for; the audit log has its own limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._is_telling = False

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether a line is written: a filter of loggers and handlers."""
        if record.levelno <= logging.DEBUG or record.name == _AUDIT or self._is_telling:
            return True
        kind = self._kind_of(record)
        if not kind.bucket.take():
            kind.left_out += 1
            return False
        if kind.left_out:
            record.__dict__["left_out"], kind.left_out = kind.left_out, 0
        return True

    def of_others(self, record: logging.LogRecord) -> bool:
        """The same for a handler: the loggers of the broker have looked at theirs. What is left out is in the text: how
        these lines are written is decided elsewhere."""
        if record.name.startswith(f"{_ROOT}."):
            return True
        is_written = self(record)
        if "left_out" in record.__dict__ and not self._is_telling:
            record.msg = f"{record.msg} ({record.__dict__.pop('left_out')} of these {LEFT_OUT})"
        return is_written

    def tell(self, *, is_end: bool = False) -> None:
        """Say how many lines were left out for which no other says it: those of kinds that have room again, or, at the
        end, of all."""
        self._is_telling = True
        try:
            for kind in list(self._kinds.values()):
                if kind.left_out and (is_end or kind.bucket.take()):
                    count, kind.left_out = kind.left_out, 0
                    logger, extra = logging.getLogger(kind.logger), {"left_out": count}
                    logger.log(kind.level, "%d %s: %s", count, LEFT_OUT, kind.text, extra=extra)
        finally:
            self._is_telling = False

    def _kind_of(self, record: logging.LogRecord) -> _Kind:
        text = str(record.msg)
        kind = self._kinds.get((record.name, text))
        if kind is None and len(self._kinds) >= _MOST_KINDS:
            text = ""
            kind = self._kinds.get((record.name, text))
        if kind is None:
            bucket = Bucket(LINES_PER_S, LINES_AT_ONCE, self._clock)
            kind = self._kinds[record.name, text] = _Kind(record.name, record.levelno, text, bucket)
        return kind


LINES: Final = LineLimit()
"""Of this process."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger called `tickwheel.broker.<name>`."""
    limited = logging.getLogger(f"{_ROOT}.{name}")
    limited.addFilter(LINES)
    logger = structlog.wrap_logger(
        limited,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, logger)


class Sparing:
    """Warnings of what is tried again and again: each with the same reason once in a while."""

    def __init__(self, logger: structlog.stdlib.BoundLogger, every_s: float = 10.0) -> None:
        self._logger, self._every_s = logger, every_s
        self._said_s: dict[tuple[str, str], float] = {}

    def warning(self, event: str, *, reason: str, **fields: Any) -> None:
        """If it was not said lately."""
        now_s = time.monotonic()
        self._said_s = {key: said_s for key, said_s in self._said_s.items() if now_s - said_s < self._every_s}
        if (event, reason) not in self._said_s:
            self._said_s[event, reason] = now_s
            self._logger.warning(event, reason=reason, **fields)


def line(settings: Settings, event: structlog.typing.EventDict, stream: TextIO | None = sys.stderr) -> bytes:
    """An event as `configure` would write it, without a time."""
    if _is_for_people(settings, stream):
        return f"{_Logfmt(colour=False)(None, '', event)}\n".encode()
    return json.dumps(event).encode() + b"\n"


def _is_for_people(settings: Settings, stream: TextIO | None) -> bool:
    is_terminal = stream is not None and stream.isatty()
    return settings.log_format == "console" or (settings.log_format == "auto" and is_terminal)


def configure(settings: Settings, stream: TextIO | None = sys.stderr, name: str = _ROOT) -> None:
    """Write the broker's events, or those of loggers below another name, to `stream`: readable lines on a terminal,
    JSON otherwise, or as the settings say.
    """
    # Without standard error, nothing is told.
    handler = Lines(stream) if stream is not None else logging.NullHandler()
    as_console = _is_for_people(settings, stream)
    colour = stream is not None and stream.isatty()
    renderer = _Logfmt(colour) if as_console else structlog.processors.JSONRenderer()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger(name)
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    root.propagate = False


def configure_plain() -> None:
    """Write what is logged in this process to standard error as plain text, limited as the broker's own lines."""
    text = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(handlers=[Lines(sys.stderr)], level=logging.INFO, format=text)


class Lines(logging.StreamHandler[TextIO]):
    """What is written, limited; says at the end of the process what was left out before."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.addFilter(LINES.of_others)

    def close(self) -> None:
        LINES.tell(is_end=True)
        super().close()


class _Logfmt:
    """`12:00:00.123 info  started url=tickwheel://127.0.0.1:7411`."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, _logger: Any, _name: str, event: structlog.typing.EventDict) -> str:
        time = str(event.pop("timestamp", ""))[11:23]
        level = str(event.pop("level", ""))
        event.pop("logger", None)
        text = str(event.pop("event", ""))
        trace = event.pop("exception", None)
        if self._colour:
            text = f"{_BOLD}{text}{_RESET}"
        fields = "".join(f" {key}={_quoted(value)}" for key, value in event.items())
        line = f"{time} {level:<7} {text}{fields}"
        return f"{line}\n{trace}" if trace else line


def _quoted(value: object) -> str:
    text = str(value)
    if not text.isprintable():  # a line of its own, or a terminal's commands, must not come from outside
        return json.dumps(text)
    return f'"{text}"' if " " in text or not text else text
