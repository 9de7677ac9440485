"""One place for everything that can go wrong: the message on standard error and the exit code."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from tickwheel_broker.exit_codes import ExitCode, exit_code_for

_NO_COMMAND: Final = re.compile(r"No such command '(?P<name>[^']*)'")
_TYPING_MISTAKE: Final = 0.6

TIMED_OUT = 3
INTERRUPTED = 130
READER_GONE = 141

EXIT_CODES: Sequence[tuple[int, str]] = (
    (ExitCode.OK, "done"),
    (ExitCode.FAILED, "an error; the message has its code, and says what to do"),
    (
        ExitCode.USAGE,
        "the command line is not understood, or leads `tickwheel cluster` to no cluster; nothing was done",
    ),
    (
        TIMED_OUT,
        "`receive --timeout`: the time was over before --count messages had come; `fetch`: there was none",
    ),
    (ExitCode.UNCERTAIN, "the answer was lost, and it is not known whether the request was carried out"),
    (
        ExitCode.DAMAGED,
        "the data directory is damaged, or written by a newer version; or a cluster's log is lost",
    ),
    (ExitCode.NOT_CONNECTED, "no broker answers at this address"),
    (ExitCode.DEFECT, "a defect of Tickwheel itself; please report it"),
    (
        ExitCode.IO_ERROR,
        "the disk failed while the log was written, or the data directory was deleted or moved",
    ),
    (ExitCode.DISK_FULL, "the disk is full, a page of it could not be read, or too many files are open"),
    (ExitCode.LOCKED, "another broker has the data directory"),
    (ExitCode.READ_ONLY, "the data directory cannot be written"),
    (
        ExitCode.BAD_CONFIG,
        "the configuration is not valid, the directory is none, or address space is limited",
    ),
    (ExitCode.ADDRESS_IN_USE, "another program listens at this address"),
    (INTERRUPTED, "Ctrl-C"),
    (READER_GONE, "whoever read the output stopped reading, as `head` does"),
)
"""Stable: scripts may rely on them."""


class CommandFailed(Exception):
    """A command did what it could but has to end with an exit code; everything is printed already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class CommandError(Exception):
    """A typed error of the command line itself."""

    def __init__(
        self,
        code: str,
        message: str,
        advice: str = "",
        exit_code: int = ExitCode.FAILED,
        *,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice
        self.exit_code = exit_code
        self.retryable = retryable


def report_failure(error: BaseException, *, as_json: bool) -> int:
    """Print what happened on standard error and return the exit code of the process."""
    error = _innermost(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # What is still buffered must not be written at exit: that would fail again, and loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    if isinstance(error, click.ClickException):
        return _report_click(error, as_json)
    code, message, advice, exit_code = _describe(error)
    if code == "internal" and not hasattr(error, "code"):
        _print_traceback(error)
    _print(code, message, advice, as_json, retryable=bool(getattr(error, "retryable", False)))
    return exit_code


def _innermost(error: BaseException) -> BaseException:
    """What is inside a group of one, as task groups raise it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _describe(error: BaseException) -> tuple[str, str, str, int]:
    """Code, message, advice and exit code. Errors of the SDK and of the store carry the first three."""
    code = getattr(error, "code", None)
    if isinstance(code, str):
        message = str(error.args[0]) if error.args else str(error)
        exit_code = int(getattr(error, "exit_code", exit_code_for(code)))
        return code, message, _advice(error, code), exit_code
    if isinstance(error, OSError):
        subject = f"{error.filename}: " if error.filename else ""
        return "io", f"{subject}{error.strerror or error}", "", ExitCode.FAILED
    message = f"{type(error).__name__}: {error}"
    return "internal", message, "This is a defect; please report it with the lines above.", ExitCode.DEFECT


def _advice(error: BaseException, code: str) -> str:
    """Its own, or that of its code, as the store's errors have it."""
    advice = getattr(error, "advice", "")
    if advice is None:
        from tickwheel.protocol.errors import error_class

        advice = error_class(code).advice
    return str(advice)


def _with_what_was_meant(error: click.ClickException) -> click.ClickException:
    """Of a command that there is not: with the one that is called nearly so."""
    context = getattr(error, "ctx", None)
    group = None if context is None else context.command
    said = _NO_COMMAND.match(error.message)
    if said is None or context is None or not isinstance(group, click.Group):
        return error
    near = difflib.get_close_matches(said["name"], group.list_commands(context), n=1, cutoff=_TYPING_MISTAKE)
    meant = f" Did you mean {near[0]}?" if near else ""
    return click.UsageError(f"There is no command {said['name']!r}.{meant}", context)


def _report_click(error: click.ClickException, as_json: bool) -> int:
    error = _with_what_was_meant(error)
    if as_json:
        code = "usage" if isinstance(error, click.UsageError) else "error"
        context = getattr(error, "ctx", None)
        advice = f"{context.command_path} --help" if context else ""
        _print(code, error.format_message(), advice, as_json, retryable=False)
    else:
        error.show()
    return error.exit_code


def _print(code: str, message: str, advice: str, as_json: bool, *, retryable: bool) -> None:
    if as_json:
        import msgspec

        fields: dict[str, Any] = {"code": code, "message": message, "advice": advice, "retryable": retryable}
        click.echo(msgspec.json.encode({"error": fields}), err=True)
    else:
        print_error(code, message, advice)


def print_error(code: str, message: str, advice: str) -> None:
    """`error [code]: what happened`, and on the next line what to do about it, on standard error."""
    click.echo(f"{click.style(f'error [{code}]:', fg='red', bold=True)} {message}", err=True)
    if advice:
        click.echo(advice, err=True)


def _print_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(error, file=sys.stderr)
