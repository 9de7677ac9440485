"""`tickwheel receive`: print a topic's messages as they become due, and acknowledge them."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from cli.failures import TIMED_OUT, CommandError
from cli.options import parsed_by
from cli.output import body_fields, printable
from cli.session import CONNECT_TIMEOUT_S, current_session, shared_options
from cli.times import format_moment, parse_duration, parse_moment

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

    from tickwheel import Batch, Message, Subscription

_MOST_CREDIT = 1_000


@dataclass
class Wish:
    """What the user asked for; `received` counts up."""

    topic: str
    group: str
    count: int | None
    timeout_s: float | None
    acks: bool
    form: str  # "line", "json" or "raw"
    start: Any = "earliest"
    shard: str | None = None
    nack_delay: timedelta | None = None
    error: str = ""
    received: int = 0

    @property
    def fulfilled(self) -> bool:
        """As many messages as were asked for."""
        return self.count is not None and self.received >= self.count

    @property
    def credit(self) -> int:
        """No more messages than are wanted: the others must stay free for other subscribers."""
        return min(self.count or _MOST_CREDIT, _MOST_CREDIT)


@click.command()
@click.argument("topic")
@click.option("--group", default="default", show_default=True, help="Each group gets every message once.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option(
    "--timeout",
    metavar="DURATION",
    callback=parsed_by(parse_duration),
    help="Stop when no message came for so long: 10s.",
)
@click.option("--no-ack", is_flag=True, help="Only look: give every message back, for others to receive.")
@click.option(
    "--nack",
    "nack_delay",
    metavar="DURATION",
    callback=parsed_by(parse_duration),
    help="Acknowledge nothing: give each message back, to be delivered again after so long.",
)
@click.option("--error", default="", help="With --nack: why. Kept for the dead letter.")
@click.option(
    "--start",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    callback=parsed_by(lambda text: text if text in ("earliest", "latest") else parse_moment(text)),
    help="Where a new group begins: earliest, latest, or the time from which messages were due.",
)
@click.option("--shard", metavar="RANGE", help="Only this shard of the topic, such as -80.")
@click.option("--raw", is_flag=True, help="Print bodies only, as they are, a newline after each.")
@shared_options
def receive(
    topic: str,
    group: str,
    count: int | None,
    timeout: timedelta | None,
    no_ack: bool,
    nack_delay: timedelta | None,
    error: str,
    start: str | datetime,
    shard: str | None,
    raw: bool,
) -> None:
    """Print a topic's messages as they become due, and acknowledge them, until Ctrl-C.

    \b
    tickwheel receive reminders
    tickwheel receive reminders --group audit --json
    tickwheel receive reminders --count 10 --timeout 5s
    tickwheel receive reminders --count 1 --nack 5m --error "nobody is there"
    tickwheel receive photos --count 1 --raw > cat.jpg

    A message is acknowledged after it is printed, or given back. If this stops in between, it is delivered again.
    A line shows when the message was due, its id, [its key], and its body. The exit code is 3 when --timeout
    ended the wait before --count messages had come.
    """
    import anyio

    session = current_session()
    if raw and session.json:
        raise click.UsageError("--raw and --json exclude each other")
    if nack_delay is not None and no_ack:
        raise click.UsageError("--nack and --no-ack exclude each other")
    if error and nack_delay is None:
        raise click.UsageError("--error belongs to --nack")
    wish = Wish(
        topic,
        group,
        count,
        timeout.total_seconds() if timeout else None,
        acks=not no_ack and nack_delay is None,
        form="json" if session.json else "raw" if raw else "line",
        start=start,
        shard=shard,
        nack_delay=nack_delay,
        error=error,
    )
    with session.address() as url:
        anyio.run(_receive, url, wish, backend="trio")


async def _receive(url: str | None, wish: Wish) -> None:
    """Subscribe and print; Ctrl-C and SIGTERM end it in good order, with the acks on disk."""
    import anyio

    import tickwheel

    timed_out = False
    async with (
        tickwheel.Client(url, connect_timeout=CONNECT_TIMEOUT_S) as client,
        client.subscribe(
            wish.topic,
            group=wish.group,
            credit=wish.credit,
            batch=wish.credit,
            start=wish.start,
            shard=wish.shard,
        ) as subscription,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(_stop_on_signal, tasks.cancel_scope)
        timed_out = await _print_all(subscription, wish)
        tasks.cancel_scope.cancel()
    if timed_out and wish.count is not None and not wish.fulfilled:
        raise CommandError(
            "timed_out",
            f"{wish.received} of {wish.count} messages came before {wish.timeout_s:g} s passed without one",
            exit_code=TIMED_OUT,
        )


async def _stop_on_signal(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return


async def _print_all(subscription: Subscription[Message, Batch], wish: Wish) -> bool:
    """Print until the wish is fulfilled (False) or no message comes for too long (True)."""
    import anyio

    batches = subscription.batches()
    while not wish.fulfilled:
        batch = None
        with anyio.move_on_after(wish.timeout_s):
            batch = await anext(batches)
        if batch is None:
            return True
        for message in batch:
            if wish.fulfilled:
                break
            _print(message, wish)
            wish.received += 1
            if wish.acks:
                await message.ack()
            elif wish.nack_delay is not None:
                await message.nack(wish.nack_delay, error=wish.error)
        sys.stdout.flush()
    return False


def _print(message: Message, wish: Wish) -> None:
    if wish.form == "raw":
        sys.stdout.buffer.write(message.body + b"\n")
    elif wish.form == "json":
        sys.stdout.buffer.write(message_json(message, wish.group) + b"\n")
    else:
        click.echo(message_line(message))


def message_line(message: Message) -> str:
    """`2031-05-01T07:00:00.000Z  1042  [renewal-17]  call Ada`, and which attempt it is after the first."""
    # A key that starts with "~" was made by the sender's client for its own retries.
    key = f"[{printable(key_text(message).encode())}]  " if (message.key or "~")[0] != "~" else ""
    again = f"  (attempt {message.epoch})" if message.epoch > 1 else ""
    return f"{format_moment(message.deliver_at_ms)}  {message.id}  {key}{printable(message.body)}{again}"


def key_text(message: Message) -> str:
    """The key as valid text: another client may have sent one that is none."""
    return (message.key or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def message_json(message: Message, group: str) -> bytes:
    """One object: where and when, and the body as text or as base64."""
    import msgspec

    fields: dict[str, Any] = {
        "topic": message.topic,
        "group": group,
        "id": message.id,
        "key": key_text(message) if message.key else None,
        "order_key": message.order_key,
        "priority": message.priority,
        "headers": message.headers,
        "deliver_at": format_moment(message.deliver_at_ms),
        "deliver_at_ms": message.deliver_at_ms,
        "created_ms": message.created_ms,
        "epoch": message.epoch,
        **body_fields(message.body),
    }
    return msgspec.json.encode(fields)
