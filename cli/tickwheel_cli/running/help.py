"""`tickwheel help`: a command's help, or a page about a subject that concerns several commands."""

from __future__ import annotations

import click

from tickwheel_cli.shared.failures import EXIT_CODES
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import json_option

_TIMES = """\
Durations   250ms  5s  90m  2h30m  1d  1w       (--in, --timeout, --every)
Times       2031-05-01T09:00+02:00              (--at) ISO 8601, always with the UTC offset
            2031-05-01T07:00:00.250Z            Z is UTC

A time in the past means now. The latest one is the end of the year 9999.
A message is never delivered early by the broker's clock; its smallest step is a millisecond."""

_ERRORS = """\
Errors go to standard error, results to standard output.

  error [code]: what happened
  what to do about it

With --json an error is one line: {"error": {"code", "message", "advice", "retryable"}}.
The codes are stable; docs/protocol.md lists those that a broker answers."""


@click.command("help")
@click.argument("subject", required=False)
@json_option
@click.pass_context
def help_command(ctx: click.Context, subject: str | None) -> None:
    """Explain a command or a subject: exit-codes, times, errors.

    \b
    tickwheel help send
    tickwheel help exit-codes
    """
    root = ctx.find_root()
    command = root.command
    assert isinstance(command, click.Group)
    if subject is None:
        click.echo(command.get_help(root))
    elif subject == "exit-codes":
        print_result(
            {str(int(code)): meaning for code, meaning in EXIT_CODES},
            *(f"{int(code):>4}  {meaning}" for code, meaning in EXIT_CODES),
        )
    elif subject in ("times", "errors"):
        click.echo(_TIMES if subject == "times" else _ERRORS)
    else:
        found = command.get_command(root, subject)
        if found is None:
            raise click.UsageError(
                f"no command and no subject is called {subject!r}; subjects: exit-codes, times, errors"
            )
        with click.Context(found, info_name=subject, parent=root) as found_context:
            click.echo(found.get_help(found_context))
