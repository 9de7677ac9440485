"""`tickwheel receive`: print a topic's messages as they become due, and acknowledge them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel.protocol.headers import shown_headers
from tickwheel_cli.shared.options import DURATION, START
from tickwheel_cli.shared.output import body_fields, printable, remark
from tickwheel_cli.shared.session import CONNECT_TIMEOUT_S, current_session, shared_options
from tickwheel_cli.shared.times import format_moment
from tickwheel_cli.shared.waiting import Waiting, waiting_options

if TYPE_CHECKING:
    from tickwheel import Batch, Client, Message, Subscription
    from tickwheel.client.consumer.message import BaseMessage

_MOST_CREDIT = 1_000
_REFUSED_REMEMBERED_MAX = 10_000
_CONFIRMED_S = 5.0
"""So long the end waits for the acks: Ctrl-C ends it soon, too."""
_ROUND_S = 0.2
"""So long a printed message waits at most for others, to be acknowledged together with them."""


@dataclass(frozen=True)
class Wish:
    """Which messages, and what is to be done with them."""

    topic: str
    group: str
    acks: bool
    form: str  # "line", "json" or "raw"
    start: Any = "earliest"
    shard: str | None = None
    nack_delay: timedelta | None = None
    error: str = ""
    gives_up: bool = False
    uncounted: bool = False


@click.command()
@click.argument("topic")
@click.option("--group", default="default", show_default=True, help="Each group gets every message once.")
@waiting_options
@click.option("--no-ack", is_flag=True, help="Only look: give every message back, for others to receive.")
@click.option(
    "--nack",
    "nack_delay",
    type=DURATION,
    help="Acknowledge nothing: give each message back, to be delivered again after so long.",
)
@click.option("--uncounted", is_flag=True, help="With --nack: that it was delivered is no attempt.")
@click.option(
    "--give-up",
    is_flag=True,
    help="Acknowledge nothing: make each message a dead letter, and deliver it no more.",
)
@click.option("--error", default="", help="With --nack or --give-up: why. Kept for the dead letter.")
@click.option(
    "--start",
    type=START,
    default="earliest",
    show_default=True,
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
    uncounted: bool,
    give_up: bool,
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
    tickwheel receive reminders --count 1 --give-up --error "no such customer"
    tickwheel receive photos --count 1 --raw > cat.jpg

    A message is acknowledged after it is printed, or given back. If this stops in between, it is delivered again.
    A line shows when the message was due, its id, [its key], and its body. The exit code is 3 when --timeout
    ended the wait before --count messages had come.
    """
    import anyio

    session = current_session()
    if raw and session.json:
        raise click.UsageError("--raw and --json exclude each other")
    if (nack_delay is not None) + no_ack + give_up > 1:
        raise click.UsageError("--nack, --give-up and --no-ack exclude each other")
    if error and nack_delay is None and not give_up:
        raise click.UsageError("--error belongs to --nack or --give-up")
    if uncounted and (nack_delay is None or error):
        raise click.UsageError("--uncounted belongs to --nack, without --error")
    wish = Wish(
        topic,
        group,
        acks=not no_ack and nack_delay is None and not give_up,
        form="json" if session.json else "raw" if raw else "line",
        start=start,
        shard=shard,
        nack_delay=nack_delay,
        error=error,
        gives_up=give_up,
        uncounted=uncounted,
    )
    with session.address() as url:
        anyio.run(_receive, url, session.client_options, wish, Waiting(count, timeout), backend="trio")


async def _receive(url: str | None, options: dict[str, Any], wish: Wish, waiting: Waiting) -> None:
    """Subscribe and print until enough messages came, none comes for too long, or a signal stops it."""
    import tickwheel

    async with (
        tickwheel.Client(url, connect_timeout=CONNECT_TIMEOUT_S, **options) as client,
        waiting.signals(),
    ):
        await (_print_some(client, wish, waiting) if waiting.count else _print_all(client, wish, waiting))
    waiting.check_count()


def _subscribe(client: Client, wish: Wish, waiting: Waiting) -> Subscription[Message, Batch]:
    """Gives credit for no more messages than are wanted: the others must stay free for other subscribers."""
    credit = waiting.wanted(_MOST_CREDIT)
    return client.subscribe(
        wish.topic, group=wish.group, credit=credit, batch=credit, start=wish.start, shard=wish.shard
    )


def _tell_of_new(subscription: Subscription[Message, Batch]) -> None:
    """A name may have been a typing mistake, and a group pins messages until it is deleted."""
    if subscription.created_topic:
        remark(f"made topic {subscription.topic!r}")
    if subscription.created_group:
        remark(f"made group {subscription.group!r} of {subscription.topic!r}")


async def _print_all(client: Client, wish: Wish, waiting: Waiting) -> None:
    """Print until no message comes."""
    async with _subscribe(client, wish, waiting) as subscription:
        _tell_of_new(subscription)
        settling = Settling(subscription, wish)
        while (batch := await waiting.next_batch(subscription.receive_batch)) is not None:
            _print_batch(batch, wish, waiting)
            await settling.settle(batch)
        await settling.end()


async def _print_some(client: Client, wish: Wish, waiting: Waiting) -> None:
    """Print until enough messages came or none comes.

    Acks free credit, and the broker would send others for it. So messages are settled only after a subscription has
    stopped; if more are wanted, there is another one, with credit for what is left.
    """
    while not waiting.fulfilled:
        async with _subscribe(client, wish, waiting) as subscription:
            _tell_of_new(subscription)
            batch = await waiting.next_batch(subscription.receive_batch)
            if batch is None:
                return
            settling = Settling(subscription, wish)
            for one in await _print_round(subscription, batch, wish, waiting):
                await settling.settle(one)
            await settling.end()


async def _print_round(
    subscription: Subscription[Message, Batch], first: Batch, wish: Wish, waiting: Waiting
) -> list[Batch]:
    """Print what comes shortly one after the other, and stop the subscription; what was printed."""
    import anyio

    room, printed = waiting.wanted(_MOST_CREDIT) - len(first), [first]
    _print_batch(first, wish, waiting)
    end = anyio.current_time() + min(_ROUND_S, subscription.ack_wait_ms / 4_000)
    while room > 0:
        batch = await waiting.next_batch(subscription.receive_batch, end - anyio.current_time())
        if batch is None:
            break
        _print_batch(batch, wish, waiting)
        printed.append(batch)
        room -= len(batch)
    await subscription.stop()
    async for batch in subscription.batches():
        _print_batch(batch, wish, waiting)
        printed.append(batch)
    return printed


def _print_batch(batch: Batch, wish: Wish, waiting: Waiting) -> None:
    for message in batch:
        _print(message, wish)
        waiting.received += 1
    sys.stdout.flush()


class Settling:
    """Settles what was printed, all of it, and tells at the end what the broker did not take."""

    def __init__(self, subscription: Subscription[Message, Batch], wish: Wish) -> None:
        self._subscription = subscription
        self._wish = wish
        self._refused: dict[int, str] = {}

    async def settle(self, batch: Batch) -> None:
        """Acks messages, or gives them back."""
        wish = self._wish
        if wish.acks:
            await batch.ack()
        elif wish.nack_delay is not None or wish.gives_up:
            wanted = ("dead",) if wish.gives_up else ("nacked", "dead")
            results = await batch.nack(
                wish.nack_delay, wish.error, give_up=wish.gives_up, uncounted=wish.uncounted
            )
            told = zip(batch, results, strict=True)
            if len(self._refused) < _REFUSED_REMEMBERED_MAX:
                self._refused |= {message.id: str(result) for message, result in told if result not in wanted}

    async def end(self) -> None:
        """Raises AckRefused, and why acks were not made, or not confirmed in time."""
        import anyio

        from tickwheel.errors import AckRefused, RequestTimeout

        with anyio.move_on_after(_CONFIRMED_S) as scope:
            await self._subscription.flush()
        if scope.cancelled_caught:
            raise RequestTimeout(f"The acks were not confirmed within {_CONFIRMED_S:g} s.")
        if self._refused:
            what = "made a dead letter" if self._wish.gives_up else "given back"
            message_id, why = next(iter(self._refused.items()))
            more = f" (and {len(self._refused) - 1:,} more)" if len(self._refused) > 1 else ""
            raise AckRefused(f"Message {message_id} was not {what}: {why}{more}.", refused=self._refused)


def _print(message: Message, wish: Wish) -> None:
    if wish.form == "raw":
        sys.stdout.buffer.write(message.body + b"\n")
    elif wish.form == "json":
        sys.stdout.buffer.write(message_json(message, wish.group) + b"\n")
    else:
        click.echo(message_line(message))


def message_line(message: BaseMessage) -> str:
    """`2031-05-01T07:00:00.000Z  1042  [renewal-17]  call Ada`, and after the first delivery to the group its number.

    Not each delivery is an attempt: some are given back unread.
    """
    # A key that starts with "~" was made by the sender's client for its own retries.
    key = f"[{printable(key_text(message).encode())}]  " if (message.key or "~")[0] != "~" else ""
    from tickwheel.protocol.limits import delivery_number

    number = delivery_number(message.epoch)
    again = f"  (delivery {number})" if number > 1 else ""
    return f"{format_moment(message.deliver_at_ms)}  {message.id}  {key}{printable(message.body)}{again}"


def key_text(message: BaseMessage) -> str:
    """The key as valid text: another client may have sent one that is none."""
    return (message.key or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def message_json(message: BaseMessage, group: str, **more: int | str) -> bytes:
    """One object: where and when, and the body as text or as base64."""
    import msgspec

    fields: dict[str, Any] = {
        "topic": message.topic,
        "group": group,
        "id": message.id,
        "key": key_text(message) if message.key else None,
        "order_key": message.order_key,
        "priority": message.priority,
        "headers": shown_headers(message),
        "deliver_at": format_moment(message.deliver_at_ms),
        "deliver_at_ms": message.deliver_at_ms,
        "created_ms": message.created_ms,
        "epoch": message.epoch,
        **more,
        **body_fields(message.body),
    }
    return msgspec.json.encode(fields)
