"""`tickwheel ack`, `nack` and `extend`: settle what was fetched, by receipts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from tickwheel import ReceiptResult
    from tickwheel.protocol.receipts import Receipt
    from tickwheel.sync import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Receipts = list[tuple[int, int]]


def _receipt_arguments(command: _Command) -> _Command:
    """`TOPIC GROUP RECEIPT...`."""
    receipts = click.argument("receipts", metavar="RECEIPT... | -", nargs=-1, required=True)(command)
    return click.argument("topic")(click.argument("group")(receipts))


@click.command()
@_receipt_arguments
@shared_options
def ack(topic: str, group: str, receipts: tuple[str, ...]) -> None:
    """Acknowledge messages that were fetched, or received over HTTP, by receipts; "-" reads what fetch --json prints.

    \b
    tickwheel ack mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6
    tickwheel fetch mails --group senders --json | tickwheel ack mails senders -

    The answer to each is exact: acked, or why the receipt does not count (stale_receipt: the lease has ended, and the
    message was given to another one). The exit code is 0 only when each is acked now or was before.
    """

    def act(client: Client, group_id: int, given: _Receipts) -> Sequence[ReceiptResult]:
        return client.ack(group_id, given)

    _settle(topic, group, receipts, act, good={"acked", "already_acked"})


@click.command()
@_receipt_arguments
@click.option(
    "--in", "delay", type=DURATION, help="Deliver them again after so long; otherwise as the topic has it."
)
@click.option("--error", default="", help="Why. Kept for the dead letter.")
@click.option("--give-up", is_flag=True, help="Make them dead letters, and deliver them no more.")
@click.option("--uncounted", is_flag=True, help="That they were delivered is no attempt.")
@shared_options
def nack(
    topic: str,
    group: str,
    receipts: tuple[str, ...],
    delay: timedelta | None,
    error: str,
    give_up: bool,
    uncounted: bool,
) -> None:
    """Give messages back that were fetched, to be delivered again; by receipts, as `tickwheel ack`.

    \b
    tickwheel nack mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6 --in 5m --error "server is down"
    tickwheel nack mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6 --give-up --error "no such address"
    tickwheel nack mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6 --in 0s --uncounted

    The answer to each is exact: nacked, dead (it was the last attempt, or given up), or why the receipt does not count.
    The exit code is 0 only when each is nacked or dead.
    """

    def act(client: Client, group_id: int, given: _Receipts) -> Sequence[ReceiptResult]:
        return client.nack(group_id, given, delay, error, give_up=give_up, uncounted=uncounted)

    _settle(topic, group, receipts, act, good={"nacked", "dead"})


@click.command()
@_receipt_arguments
@click.option("--by", "duration", type=DURATION, required=True, help="For how long from now on: 5m.")
@shared_options
def extend(topic: str, group: str, receipts: tuple[str, ...], duration: timedelta) -> None:
    """Keep messages that were fetched for longer; by receipts, as `tickwheel ack`.

    \b
    tickwheel extend mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6 --by 10m

    The answer to each is exact: extended, or why the receipt does not count. The exit code is 0 only when each is
    extended.
    """

    def act(client: Client, group_id: int, given: _Receipts) -> Sequence[ReceiptResult]:
        return client.extend(group_id, given, duration)

    _settle(topic, group, receipts, act, good={"extended"})


def _settle(
    topic: str,
    group: str,
    texts: Sequence[str],
    act: Callable[[Client, int, _Receipts], Sequence[ReceiptResult]],
    *,
    good: set[str],
) -> None:
    if tuple(texts) == ("-",):
        texts = list(_from_stdin())
    receipts = [_receipt(topic, group, text) for text in texts]
    results: list[ReceiptResult | None] = [None] * len(receipts)
    with current_session().client() as client:
        # One number, unless the group was deleted and made again meanwhile.
        for group_id in dict.fromkeys(receipt.group_id for receipt in receipts):
            places = [place for place, receipt in enumerate(receipts) if receipt.group_id == group_id]
            found = act(client, group_id, [(receipts[place].id, receipts[place].epoch) for place in places])
            for place, result in zip(places, found, strict=True):
                results[place] = result
    answers = [
        (text, receipt.id, str(result))
        for text, receipt, result in zip(texts, receipts, results, strict=True)
    ]
    print_result(
        [{"receipt": text, "id": number, "result": result} for text, number, result in answers],
        *(f"{number}: {result.replace('_', ' ')}" for _, number, result in answers),
    )
    if not {result for _, _, result in answers} <= good:
        raise CommandFailed(ExitCode.FAILED)


def _receipt(topic: str, group: str, text: str) -> Receipt:
    from tickwheel.protocol.receipts import decode_receipt

    try:
        return decode_receipt(topic, group, text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is no receipt of group {group} of {topic}, or not all of it; "
            f"give it as fetch printed it, or as it came over HTTP"
        ) from None


def _from_stdin() -> Iterator[str]:
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            try:
                yield str(json.loads(line)["receipt"])
            except (ValueError, TypeError, KeyError):
                raise click.UsageError(
                    f'line {number} is no object with a "receipt", as fetch --json prints'
                ) from None
