"""`tickwheel clients`: who is connected, and closing a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tickwheel.protocol.readable import format_bytes
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import print_result, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel.stats import ClientInfo

_COLUMNS = (
    *right("id"),
    *left("peer", "name", "token", "since"),
    *right("queued", "leases"),
    *left("subscriptions", "waiting fetches"),
)
_SHOWN = 3


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def clients(ctx: click.Context) -> None:
    """List who is connected; close connections. With tokens it takes one with admin:*.

    \b
    tickwheel clients
    tickwheel clients --json | jq '.[] | select(.queued_bytes > 1000000)'
    tickwheel clients disconnect 17

    "queued" is what waits until the client reads it, "leases" how many messages its subscriptions hold; a fetch that
    waits is there until it is given messages. This command's own connection is one of them.
    """
    if ctx.invoked_subcommand is not None:
        return
    with current_session().client() as client:
        found = client.clients()
    print_found(found, _COLUMNS, [_row(one) for one in found], empty="Nothing is connected.")


@clients.command()
@click.argument("id", type=click.IntRange(1))
@shared_options
def disconnect(id: int) -> None:
    """Close the connection with this ID; what it holds goes to other subscribers at once.

    A client that is well connects again: to keep it out, revoke its token. The exit code is 1 when there is no such
    connection.
    """
    with current_session().client() as client:
        closed = client.disconnect(id)
    print_result({"closed": closed}, f"{id}: closed" if closed else f"{id}: there is no such connection")
    if not closed:
        raise CommandFailed(ExitCode.FAILED)


def _row(client: ClientInfo) -> list[str]:
    names = [f"{one.topic}/{one.group}" for one in client.subscriptions[:_SHOWN]]
    fetches = [
        f"{one.topic}/{one.group} {one.count:,} since {format_moment(one.since_ms)}"
        for one in client.fetches[:_SHOWN]
    ]
    others = sum(one.count for one in client.fetches[_SHOWN:]) + client.more_fetches
    return [
        str(client.id),
        client.peer,
        printable(client.name.encode("utf-8", "replace")),
        client.token_name,
        format_moment(client.since_ms),
        format_bytes(client.queued_bytes),
        f"{sum(one.leases for one in client.subscriptions):,}",
        _joined(names, len(client.subscriptions) + client.more_subscriptions - len(names)),
        _joined(fetches, others),
    ]


def _joined(names: list[str], more: int) -> str:
    return ", ".join([*names, f"{more:,} more"] if more else names) or "-"
