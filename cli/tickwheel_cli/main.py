"""The entry point: the table of commands, the options that all of them share, and one place for errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from tickwheel_cli.lazy import Entry, LazyGroup
from tickwheel_cli.shared.session import json_option, place_options, security_options

_MESSAGES, _LOOKING, _RUNNING = "Messages", "Looking inside", "Running it"

COMMANDS = {
    "send": Entry("messages.send:send", "Send a message, for now or for a time.", _MESSAGES),
    "receive": Entry("messages.receive:receive", "Print a topic's messages as they become due.", _MESSAGES),
    "fetch": Entry("messages.fetch:fetch", "Take messages that are due, once.", _MESSAGES),
    "ack": Entry("messages.settle:ack", "Acknowledge what was fetched.", _MESSAGES),
    "nack": Entry("messages.settle:nack", "Give back what was fetched, to be delivered again.", _MESSAGES),
    "extend": Entry("messages.settle:extend", "Keep what was fetched for longer.", _MESSAGES),
    "cancel": Entry("messages.change:cancel", "Cancel messages that are not delivered yet.", _MESSAGES),
    "reschedule": Entry(
        "messages.change:reschedule", "Give messages that are not delivered yet a new time.", _MESSAGES
    ),
    "redeliver": Entry(
        "messages.change:redeliver", "Deliver messages again that were delivered before.", _MESSAGES
    ),
    "transaction": Entry(
        "messages.transaction:transaction", "Send, cancel, reschedule: all or nothing.", _MESSAGES
    ),
    "prepared": Entry(
        "messages.transaction:prepared", "Messages that wait for commit or rollback.", _MESSAGES
    ),
    "dead": Entry("messages.dead:dead", "List, replay or drop dead letters.", _MESSAGES),
    "schedules": Entry("messages.schedules:schedules", "Messages that are sent again and again.", _MESSAGES),
    "endpoints": Entry("messages.endpoints:endpoints", "URLs that a topic's messages go to.", _MESSAGES),
    "topics": Entry("looking.topics:topics", "List, create, change, delete topics.", _LOOKING),
    "groups": Entry("looking.groups:groups", "List, create, move, delete groups.", _LOOKING),
    "show": Entry("looking.show:show", "Show one message, by id or key.", _LOOKING),
    "history": Entry("looking.history:history", "Show what has happened to a message.", _LOOKING),
    "events": Entry("looking.events:events", "Print what happens at the broker.", _LOOKING),
    "query": Entry("looking.query:query", "Ask with SQL what is in the topics.", _LOOKING),
    "browse": Entry("messages.dead:browse", "Look at messages without taking them.", _LOOKING),
    "pipeline": Entry("pipeline.group:pipeline", "Bulk work on the messages with Spark.", _LOOKING),
    "outbox": Entry("outbox.group:outbox", "Messages inside your own SQL database.", _MESSAGES),
    "stats": Entry("looking.stats:stats", "Show what the broker holds and does.", _LOOKING),
    "top": Entry("looking.top:top", "Watch in a terminal how the broker goes.", _LOOKING),
    "figures": Entry("looking.figures:figures", "Show counters and histograms of the broker.", _LOOKING),
    "clients": Entry("looking.clients:clients", "List who is connected; close connections.", _LOOKING),
    "audit": Entry("looking.audit:audit", "Show the audit log: log-ins, refusals, changes.", _LOOKING),
    "wheel": Entry("looking.wheel:wheel", "Draw what is due when.", _LOOKING),
    "inspect": Entry("looking.inspect:inspect", "Verify a data directory that no broker has open.", _LOOKING),
    "backup": Entry("running.backup:backup", "Copy a data directory while its broker serves.", _RUNNING),
    "repair": Entry("running.repair:repair", "Save what can be saved of a damaged data directory.", _RUNNING),
    "restore": Entry("running.backup:restore", "Make a data directory of a backup.", _RUNNING),
    "serve": Entry("running.serve:serve", "Run the broker.", _RUNNING),
    "web": Entry("beside.web:web", "Serve HTTP for a broker.", _RUNNING),
    "push": Entry("beside.push:push", "Send messages to the URLs of endpoints.", _RUNNING),
    "work": Entry("working.command:work", "Call a program's handlers for messages.", _RUNNING),
    "gateway": Entry("beside.gateway:gateway", "Serve clients of RocketMQ 5.", _RUNNING),
    "flight": Entry("beside.flight:flight", "Serve tables by Arrow Flight: Spark, DuckDB.", _RUNNING),
    "cluster": Entry("running.cluster:cluster", "A log that several machines have.", _RUNNING),
    "tokens": Entry("running.tokens:tokens", "Who may log in, and do what.", _RUNNING),
    "purge": Entry("running.purge:purge", "Give the space of messages that are done back.", _RUNNING),
    "demo": Entry("demo.command:demo", "Replay a day of real departures.", _RUNNING),
    "config": Entry("running.config:config", "Check or show the configuration.", _RUNNING),
    "simulate": Entry(
        "running.simulate:simulate", "Run the broker in simulated time, with faults.", _RUNNING
    ),
    "bench": Entry("running.bench:bench", "Measure speed and lateness here.", _RUNNING),
    "completion": Entry("running.completion:completion", "Print the completion script of a shell.", _RUNNING),
    "help": Entry("running.help:help_command", "Explain a command or a subject.", _RUNNING),
}


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is among the options; what follows `--` are none. Errors may come before click knows."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--json" in arguments[:end]


class RootGroup(LazyGroup):
    """The `tickwheel` command. Every way to fail ends in `shared.failures`, which picks text and exit code."""

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
            from tickwheel_cli.shared.failures import report_failure

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
