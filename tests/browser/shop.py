"""A shop whose broker is worth a picture: an hour of work by a clock that is moved, and what is to come."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any, Final

import anyio
import anyio.to_thread

from tickwheel import Client, Message
from tickwheel.testing import TestBroker, broker
from tickwheel.watching.numbers import gauge
from tickwheel_web.dashboard.figures.history import EVERY_S, History

WORKED: Final = timedelta(minutes=62)
SCHEDULED_KEY, DELIVERED_KEY = "order-4711/review", "order-4711/confirmation"
_STEP: Final = timedelta(seconds=EVERY_S)
_STEPS: Final = WORKED // _STEP
_SENT_EVERY: Final = 6
"""Steps."""
_DAY: Final = timedelta(days=1)
_GROUPS: Final = {"orders": ("billing", "shipping"), "mails": ("sender",), "reminders": ("phone",)}
_UNREAD: Final = "warehouse"
_IN_FLIGHT: Final = 3
_RATES: Final = {"orders": 9.0, "mails": 5.0, "reminders": 2.0}
"""Messages a step."""
_GIVEN_UP: Final = {
    "billing": (("card declined: insufficient funds", 7), ("timeout after 30 s: payments.example", 3)),
    "sender": (("550 5.1.1 no such mailbox", 12),),
}
_SCHEDULES: Final = {
    "daily-report": ("reports", "0 6 * * *", "Europe/Berlin"),
    "invoices": ("invoices", "0 9 1 * *", "Europe/Berlin"),
    "newsletter": ("mails", "30 10 * * 2", "America/New_York"),
    "stock-check": ("orders", "0 */6 * * *", "UTC"),
    "clean-up": ("exports", "30 2 * * *", "Europe/Berlin"),
    "payroll": ("invoices", "0 8 25 * *", "Europe/London"),
}


@asynccontextmanager
async def opened(history: History) -> AsyncIterator[tuple[TestBroker, dict[str, str]]]:
    """The broker, and what stands for the parts of paths. Its clients are there until the block ends."""
    begun = datetime.now(UTC).replace(microsecond=0) - WORKED
    async with (
        broker(start=begun) as running,
        running.client(name="shop") as client,
        anyio.create_task_group() as group,
    ):
        shop = Shop(running, client, history)
        await shop.prepare()
        for topic, names in _GROUPS.items():
            for name in names:
                await group.start(shop.consume, topic, name)
        await shop.work(begun)
        parts = await shop.plan()
        group.start_soon(shop.go_on)
        yield running, parts
        group.cancel_scope.cancel()


class Shop:
    """What its programs do."""

    def __init__(self, running: TestBroker, client: Client, history: History) -> None:
        self._broker = running
        self._client = client
        self._history = history
        self._random = Random(17)
        self._to_give_up = {group: self._reasons(kinds) for group, kinds in _GIVEN_UP.items()}
        self._to_hold = 0

    def _reasons(self, kinds: tuple[tuple[str, int], ...]) -> list[str]:
        found = [reason for reason, count in kinds for _ in range(count)]
        self._random.shuffle(found)
        return found

    async def prepare(self) -> None:
        """Topics, groups, schedules, endpoints."""
        client = self._client
        for topic in ("orders", "mails", "reminders", "invoices", "reports", "exports"):
            await client.create_topic(topic)
        await client.set_topic("mails", ack_wait=timedelta(minutes=2), max_attempts=5)
        await client.create_group("orders", _UNREAD)
        await client.pause_topic("exports")
        for name, (topic, cron, zone) in _SCHEDULES.items():
            await client.create_schedule(name, topic, cron=cron, tz=zone, body=b'{"by": "schedule"}')
        await client.pause_schedule("newsletter")
        for name, topic in (("crm", "orders"), ("audit-trail", "invoices")):
            await client.set_endpoint(name, topic=topic, url=f"https://{name}.example/hooks/tickwheel")
        await self._look_far_ahead(self._broker.clock.now() + WORKED)

    async def _look_far_ahead(self, now: datetime) -> None:
        client, random = self._client, self._random
        waves = sorted(random.triangular(0, 30, 6) for _ in range(42_000))
        orders = [now + timedelta(days=max(0.003, days)) for days in waves]
        reminders = [now + timedelta(days=random.uniform(0.05, 700)) for _ in range(60_000)]
        new_year = datetime(now.year + 1, 1, 1, tzinfo=UTC)
        reminders += [new_year + timedelta(seconds=random.randint(0, 1_800)) for _ in range(21_400)]
        invoices = [new_year + timedelta(days=30 * random.randint(0, 120)) for _ in range(8_000)]
        for topic, times in (("orders", orders), ("reminders", reminders), ("invoices", invoices)):
            for start in range(0, len(times), 5_000):
                part = times[start : start + 5_000]
                (await client.send_many(topic, [_BODY] * len(part), deliver_at=part)).raise_for_errors()

    async def consume(
        self, topic: str, group: str, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Acks nearly all."""
        async with (
            self._broker.client(name=f"{group}-1") as client,
            client.subscribe(topic, group) as subscription,
        ):
            task_status.started()
            async for message in subscription:
                await self._handle(group, message)

    async def _handle(self, group: str, message: Message) -> None:
        if group == "phone" and self._to_hold > 0:
            self._to_hold -= 1
            return
        reasons = self._to_give_up.get(group, [])
        if message.key == DELIVERED_KEY and message.epoch == 1:
            await message.nack(error="421 4.3.2 try again later", delay=timedelta(minutes=2))
        elif reasons and self._random.random() < 0.01:
            await message.nack(error=reasons.pop(), give_up=True)
        else:
            await message.ack()

    async def work(self, begun: datetime) -> None:
        """An hour, five seconds after five seconds: each time a few milliseconds late, as clocks are."""
        for number in range(_STEPS):
            if number % _SENT_EVERY == 0:
                await self._send(begun + number * _STEP, number)
            late = timedelta(milliseconds=int(self._random.lognormvariate(0.3, 0.8)))
            await self._move_to(begun + (number + 1) * _STEP + late)
            self._history.add(await self._client.figures())

    async def _move_to(self, now: datetime) -> None:
        """And on when all has been done that is to be done then."""
        self._broker.clock.set(now)
        while not await anyio.to_thread.run_sync(self._broker.is_still) or await self._is_behind():
            pass

    async def _is_behind(self) -> bool:
        """Something is due that is not where it belongs yet: a thread may be at work for it. The wheel itself does not
        turn for nothing."""
        return bool(gauge(await self._client.figures(totals_only=True), "due_backlog"))

    async def go_on(self) -> None:
        """As fast as time, so that there is something to see."""
        now = self._broker.clock.now().replace(microsecond=0)
        for number in count():
            now += timedelta(seconds=1)
            for topic, rate in _RATES.items():
                messages = int((number + 1) * rate / EVERY_S) - int(number * rate / EVERY_S)
                await self._client.send_many(topic, [_BODY] * messages, deliver_at=now)
            await anyio.sleep(1)
            await self._move_to(now + timedelta(milliseconds=self._random.randint(0, 3)))

    async def _send(self, now: datetime, number: int) -> None:
        wave = 1 + 0.5 * math.sin(number / 90) + 0.3 * self._random.random()
        for topic, rate in _RATES.items():
            times = [now + self._random.randint(1, 60) * _STEP for _ in range(int(rate * wave * _SENT_EVERY))]
            bodies = [_body(self._random) for _ in times]
            (await self._client.send_many(topic, bodies, deliver_at=times)).raise_for_errors()
        if number == 60 * _SENT_EVERY // 6:
            await self._client.send(
                "mails", _body(self._random), key=DELIVERED_KEY, delay=timedelta(minutes=20), headers=_HEADERS
            )

    async def plan(self) -> dict[str, str]:
        """A few messages that are being worked on, and one that is looked at."""
        client, random, now = self._client, self._random, self._broker.clock.now()
        self._to_hold = _IN_FLIGHT
        await client.send_many("reminders", [_body(random) for _ in range(_IN_FLIGHT)])
        found = await client.send(
            "reminders", _body(random), key=SCHEDULED_KEY, delay=13 * _DAY, headers=_HEADERS
        )
        await client.reschedule("reminders", key=SCHEDULED_KEY, delay=14 * _DAY)
        await self._move_to(now + timedelta(seconds=1))
        return {
            "topic": "orders",
            "group": "billing",
            "id": str(found.id),
            "schedule": "daily-report",
            "endpoint": "crm",
        }


_HEADERS: Final = {
    "content-type": "application/json",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tenant": "berlin",
}
_BODY: Final = b'{"order": 4711}'


def _body(random: Random) -> bytes:
    order: dict[str, Any] = {
        "order": random.randint(1_000, 9_999),
        "customer": random.choice(["Ada", "Grace", "Edsger", "Barbara", "Niklaus"]),
        "total": f"{random.uniform(5, 400):.2f} EUR",
        "items": random.randint(1, 9),
    }
    return json.dumps(order).encode()
