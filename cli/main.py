"""The entry point: the table of commands, the options that all of them share, and one place for errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from cli.lazy import CommandEntry, LazyGroup
from cli.session import json_option, place_options, security_options

_MESSAGES, _LOOKING, _RUNNING = "Messages", "Looking inside", "Running it"

COMMANDS = {
    "send": CommandEntry("cli.commands.send", "send", "Send a message, for now or for a time.", _MESSAGES),
    "receive": CommandEntry(
        "cli.commands.receive", "receive", "Print a topic's messages as they become due.", _MESSAGES
    ),
    "cancel": CommandEntry(
        "cli.commands.change", "cancel", "Cancel messages that are not delivered yet.", _MESSAGES
    ),
    "reschedule": CommandEntry(
        "cli.commands.change", "reschedule", "Give messages that are not delivered yet a new time.", _MESSAGES
    ),
    "redeliver": CommandEntry(
        "cli.commands.change", "redeliver", "Deliver messages again that were delivered before.", _MESSAGES
    ),
    "transaction": CommandEntry(
        "cli.commands.transaction", "transaction", "Send, cancel, reschedule: all or nothing.", _MESSAGES
    ),
    "prepared": CommandEntry(
        "cli.commands.transaction", "prepared", "Messages that wait for commit or rollback.", _MESSAGES
    ),
    "dead": CommandEntry("cli.commands.dead", "dead", "List, replay or drop dead letters.", _MESSAGES),
    "schedules": CommandEntry(
        "cli.commands.schedules", "schedules", "Messages that are sent again and again.", _MESSAGES
    ),
    "topics": CommandEntry("cli.commands.topics", "topics", "List, create, change, delete topics.", _LOOKING),
    "groups": CommandEntry("cli.commands.groups", "groups", "List, create, move, delete groups.", _LOOKING),
    "show": CommandEntry("cli.commands.show", "show", "Show one message, by id or key.", _LOOKING),
    "query": CommandEntry("cli.commands.query", "query", "Ask with SQL what is in the topics.", _LOOKING),
    "browse": CommandEntry("cli.commands.dead", "browse", "Look at messages without taking them.", _LOOKING),
    "pipeline": CommandEntry(
        "cli.pipeline.group", "pipeline", "Bulk work on the messages with Spark.", _LOOKING
    ),
    "outbox": CommandEntry("cli.outbox.group", "outbox", "Messages inside your own SQL database.", _MESSAGES),
    "stats": CommandEntry("cli.commands.stats", "stats", "Show what the broker holds and does.", _LOOKING),
    "wheel": CommandEntry("cli.commands.wheel", "wheel", "Draw what is due when.", _LOOKING),
    "inspect": CommandEntry(
        "cli.inspect", "inspect", "Verify a data directory that no broker has open.", _LOOKING
    ),
    "backup": CommandEntry(
        "cli.backup", "backup", "Copy a data directory while its broker serves.", _RUNNING
    ),
    "repair": CommandEntry(
        "cli.repair", "repair", "Save what can be saved of a damaged data directory.", _RUNNING
    ),
    "restore": CommandEntry("cli.backup", "restore", "Make a data directory of a backup.", _RUNNING),
    "serve": CommandEntry("cli.commands.serve", "serve", "Run the broker.", _RUNNING),
    "tokens": CommandEntry("cli.commands.tokens", "tokens", "Who may log in, and do what.", _RUNNING),
    "purge": CommandEntry(
        "cli.commands.purge", "purge", "Give the space of messages that are done back.", _RUNNING
    ),
    "demo": CommandEntry("cli.demo.command", "demo", "Replay a day of real departures.", _RUNNING),
    "config": CommandEntry("cli.commands.config", "config", "Check or show the configuration.", _RUNNING),
    "simulate": CommandEntry(
        "cli.commands.simulate", "simulate", "Run the broker in simulated time, with faults.", _RUNNING
    ),
    "bench": CommandEntry("cli.commands.bench", "bench", "Measure speed and lateness here.", _RUNNING),
    "completion": CommandEntry(
        "cli.commands.completion", "completion", "Print the completion script of a shell.", _RUNNING
    ),
    "help": CommandEntry("cli.commands.help", "help_command", "Explain a command or a subject.", _RUNNING),
}


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is among the options; what follows `--` are none. Errors may come before click knows."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--json" in arguments[:end]


class RootGroup(LazyGroup):
    """The `tickwheel` command. Every way to fail ends in `cli.failures`, which picks text and exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit with its code; without `standalone_mode`, raise instead."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            result = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except BaseException as error:
            if not standalone_mode:
                raise
            from cli.failures import report_failure

            sys.exit(report_failure(error, as_json=_wants_json(arguments)))
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result


@click.group(
    cls=RootGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage; `tickwheel help exit-codes` lists the others.",
)
@place_options
@security_options
@json_option
@click.version_option(package_name="tickwheel", message="%(prog)s %(version)s")
def root() -> None:
    """Tickwheel delivers messages at a time: now, in 30 seconds, or on a day in 2031.

    \b
    tickwheel demo                                      see it work on real data
    tickwheel serve --data ./data                       run the broker
    tickwheel send reminders "call Ada" --in 30s        send a message for later
    tickwheel receive reminders                         print what is due
    tickwheel --data ./data send reminders "no daemon"  the same without a daemon
    """


def main() -> None:
    """What the `tickwheel` script calls."""
    root.main(prog_name="tickwheel")
