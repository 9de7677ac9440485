"""What stands at a broker when its dashboard is tested: something for each page, with texts that must be escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import tickwheel
from tickwheel_web.dashboard.page import Page
from tickwheel_web.dashboard.table import PAGES

SCRIPT: Final = "<script>alert(1)</script>"
HOSTILE: Final = f"{SCRIPT}\"'&amp;\u202eevil\u2066"
"""In keys, headers, bodies and errors."""
NOT_PAGES: Final = ("/events", "/messages/{id}/body", "/dead/export", "/audit/lines", "/query/rows")
"""Rows of the table that answer no HTML."""


async def fill(client: tickwheel.Client) -> dict[str, str]:
    """Makes it, and answers what stands for the parts of paths."""
    async with client.subscribe("orders", "billing") as subscription:
        await client.send("orders", b"{}")
        await subscription.receive(60)  # in flight, until this is over
        gone = await client.send("orders", HOSTILE.encode(), key="gone")
        message = await subscription.receive(60)
        assert message.id == gone.id
        await message.nack(error=HOSTILE, give_up=True)
    later = timedelta(days=1)
    headers = {"x-hostile": HOSTILE, "content-type": "text/plain"}
    kept = await client.send("orders", HOSTILE.encode(), key=HOSTILE, headers=headers, delay=later)
    await client.send("orders", b"k" * 100, key="k" * 255, delay=later)
    await client.create_schedule(
        "orders", "orders", cron="0 9 * * 1-5", tz="Europe/Berlin", body=HOSTILE.encode()
    )
    await client.set_endpoint("orders", topic="orders", url="https://orders.example/hook?<b>")
    await client.create_topic("paused")
    await client.pause_topic("paused")
    return {
        "topic": "orders",
        "group": "billing",
        "id": str(kept.id),
        "schedule": "orders",
        "endpoint": "orders",
    }


def pages() -> list[Page]:
    """All that are looked at."""
    return [row for row in PAGES if row.method == "GET" and row.path not in NOT_PAGES]


def path_of(row: Page, parts: Mapping[str, str]) -> str:
    """Where it is for what ``fill`` has made."""
    return row.path.format(**parts)
