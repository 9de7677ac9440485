"""`tickwheel fetch`: take messages once, without a subscription, and leave them leased or acknowledge them."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.messages.receive import message_json, message_line
from tickwheel_cli.shared.failures import TIMED_OUT, CommandError
from tickwheel_cli.shared.options import DURATION, START
from tickwheel_cli.shared.session import CONNECT_TIMEOUT_S, current_session, shared_options

if TYPE_CHECKING:
    from tickwheel import sync

_MOST = 8_192


@click.command()
@click.argument("topic")
@click.option("--group", default="default", show_default=True, help="Each group gets every message once.")
@click.option(
    "--count", type=click.IntRange(1, _MOST), default=1, show_default=True, help="At most so many messages."
)
@click.option("--wait", type=DURATION, help="If none is ready, wait for the first one so long: 20s.")
@click.option(
    "--lease", type=DURATION, help="Keep them from others for so long, instead of the topic's ack_wait."
)
@click.option("--ack", is_flag=True, help="Acknowledge them once they are printed.")
@click.option(
    "--start",
    type=START,
    default="earliest",
    show_default=True,
    help="Where a new group begins: earliest, latest, or the time from which messages were due.",
)
@shared_options
def fetch(
    topic: str,
    group: str,
    count: int,
    wait: timedelta | None,
    lease: timedelta | None,
    ack: bool,
    start: str | datetime,
) -> None:
    """Take messages that are due, once. They are delivered again when their leases end, unless --ack is given.

    \b
    tickwheel fetch mails --group senders --ack
    tickwheel fetch mails --group senders --count 10 --wait 20s --lease 5m --json
    tickwheel ack mails senders AQcAAAASBAAAAAAAAAEAAACS-qZ6

    Each message has a receipt, by which any client settles it: `tickwheel ack`, `nack`, `extend`, or over HTTP. The
    exit code is 3 when there was no message.
    """
    import tickwheel.sync

    session = current_session()
    options: dict[str, Any] = {"count": count, "wait": wait, "lease": lease, "start": start}
    with (
        session.address() as url,
        tickwheel.sync.Client(url, connect_timeout=CONNECT_TIMEOUT_S, **session.client_options) as client,
    ):
        fetched = client.fetch(topic, group, **options)
        _print(fetched, group, as_json=session.json, with_receipts=not ack)
        if ack and fetched:
            fetched.ack(confirm=True)
    if not fetched:
        raise CommandError("timed_out", "there was no message", exit_code=TIMED_OUT)


def _print(fetched: sync.Fetched, group: str, *, as_json: bool, with_receipts: bool) -> None:
    from tickwheel.protocol.receipts import Receipt, encode_receipt

    for message, attempt in zip(fetched, fetched.attempts, strict=True):
        receipt = encode_receipt(fetched.topic, group, Receipt(fetched.group_id, message.id, message.epoch))
        if as_json:
            sys.stdout.buffer.write(message_json(message, group, receipt=receipt, attempt=attempt) + b"\n")
        else:
            click.echo(message_line(message) + (f"  (receipt {receipt})" if with_receipts else ""))
    sys.stdout.flush()
