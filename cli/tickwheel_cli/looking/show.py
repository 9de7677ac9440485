"""`tickwheel show`: one message, by its id or its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tickwheel.protocol.headers import readable_headers, shown_headers
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import body_fields, counted, print_json, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_table, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel import MessageInfo

_BODY_CHARACTERS = 2_000
_COLUMNS = (*left("group", "state"), *right("epoch", "attempts"), *left("time"))
_TIMES = {"leased": "until", "waiting": "until", "acked": "at", "dead": "at"}


@click.command()
@click.argument("which", metavar="ID | TOPIC", required=False)
@click.option("--topic", help="As TOPIC; with an ID, the topic that it must be of.")
@click.option("--key", help="The message of TOPIC with this key.")
@shared_options
def show(which: str | None, topic: str | None, key: str | None) -> None:
    """Show one message, without taking it: its times, headers and body, and how far each group is with it.

    \b
    tickwheel show 1234
    tickwheel show orders --key order-17 --json
    tickwheel show --topic orders --key order-17
    """
    if key is not None and which is not None and topic is not None:
        raise click.UsageError("TOPIC and --topic are the same: give one of them")
    which = which or topic
    if which is None:
        raise click.UsageError("give an ID, or --topic and --key")
    if key is None and not (which.isascii() and which.isdigit()):
        raise click.UsageError(f"{which!r} is no id: for a message of that topic, give --key")
    with current_session().client() as client:
        found = client.message(id=int(which)) if key is None else client.message(which, key=key)
    if found is not None and key is None and topic is not None and found.topic.partition("/")[0] != topic:
        found = None
    if found is None:
        what = (
            f"{which} has no message with the key {key!r}"
            if key is not None
            else f"There is no message {which}"
        )
        click.echo(f"{what}, or none any more.", err=True)
        raise CommandFailed(ExitCode.FAILED)
    if current_session().json:
        print_json(_fields(found))
    else:
        _print(found)


def _fields(message: MessageInfo) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    del fields["body"]
    fields["standing"] = message.standing
    return {**fields, "headers": shown_headers(message), **body_fields(message.body)}


def _print(message: MessageInfo) -> None:
    click.echo(f"message {message.id} of {message.topic}, {message.standing}")
    click.echo(f"  due      {format_moment(message.deliver_at_ms)}")
    click.echo(f"  created  {format_moment(message.created_ms)}")
    click.echo(f"  priority {message.priority}")
    for name, value in (("key", message.key), ("order key", message.order_key)):
        if value:
            click.echo(f"  {name:<9}{printable(value.encode(errors='replace'))}")
    headers = readable_headers(message)
    if headers is None:
        click.echo("  headers  cannot be read: another client wrote them")
    for name, value in (headers or {}).items():
        click.echo(f"  header   {printable(f'{name}={value}'.encode(errors='replace'))}")
    click.echo(
        f"  body     {counted(message.body_bytes, 'byte')}: {printable(message.body, _BODY_CHARACTERS)}"
    )
    if message.groups:
        print_table(_COLUMNS, [_cells(one) for one in message.groups])


def _cells(group: Any) -> list[str]:
    time_ms = group.until_ms or group.done_ms
    time = f"{_TIMES.get(group.state, '')} {format_moment(time_ms)}".strip() if time_ms else "-"
    return [group.group, group.state, str(group.epoch), str(group.attempts), time]
