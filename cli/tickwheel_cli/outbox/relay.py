"""`tickwheel outbox relay`: move committed messages from a message table to a topic of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import connection_options, current_session, json_option
from tickwheel_cli.shared.waiting import run_until_signal

if TYPE_CHECKING:
    from tickwheel.outbox import Relay


@click.command()
@click.option("--table", required=True, help="The message table.")
@click.option("--to", "topic", required=True, metavar="TOPIC", help="The broker's topic.")
@click.option(
    "--body",
    metavar="COLUMN",
    help="What becomes the body.  [default: message, body, or JSON of all columns]",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="COLUMN",
    help="What becomes a header; may be repeated.  [default: the rest]",
)
@click.option(
    "--order-key", metavar="COLUMN", help="The ordering key: messages that share it keep their order."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=1_000,
    show_default=True,
    help="The most rows at a time.",
)
@click.option("--once", is_flag=True, help="Move what is there, and end.")
@database_option
@connection_options
@json_option
def relay(
    table: str,
    topic: str,
    body: str | None,
    headers: tuple[str, ...],
    order_key: str | None,
    batch: int,
    once: bool,
    database_url: str,
) -> None:
    """Move committed messages to the broker, each exactly once, until Ctrl-C.

    \b
    tickwheel outbox relay --database postgresql://app@localhost/shop --table mails --to mails
    tickwheel outbox relay --table reminders --to reminders --once --data ./data

    Future messages are handed over at once; the broker delivers them at their time. Database and broker may go away
    meanwhile: nothing is lost or sent twice. Of several relays of one table one works, and the others stand by.
    """
    import anyio

    from tickwheel import outbox

    with open_database(database_url) as database, current_session().address(may_create=True) as broker:
        mover = outbox.Relay(
            database,
            table,
            broker,
            topic,
            body=body,
            headers=headers or None,
            order_key=order_key,
            batch=batch,
        )
        anyio.run(_run, mover, once, backend="trio")
        _report(mover)


async def _run(mover: Relay, once: bool) -> None:
    if once:
        await mover.run_once()
        return
    click.echo("Relaying until Ctrl-C.", err=True)
    await run_until_signal(mover.run)


def _report(mover: Relay) -> None:
    from dataclasses import asdict

    stats: dict[str, int] = asdict(mover.stats)
    others = [
        f"{name.replace('_', ' ')}: {count:,}" for name, count in stats.items() if count and name != "moved"
    ]
    print_result(stats, f"moved {counted(mover.stats.moved, 'message')}", *others)
