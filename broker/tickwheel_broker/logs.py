"""Structured logs: events with fields, through structlog into the standard `logging` module.

Inside a user's process (`tickwheel.embedded`) nothing is configured here: the events go to the logger
`tickwheel.broker` and the user decides. The daemon calls `configure`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO, cast

import structlog

from tickwheel_broker.config.settings import Settings

_ROOT = "tickwheel.broker"
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger called `tickwheel.broker.<name>`."""
    logger = structlog.wrap_logger(
        logging.getLogger(f"{_ROOT}.{name}"),
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
    handler = logging.StreamHandler(stream) if stream is not None else logging.NullHandler()
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
