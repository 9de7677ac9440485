"""Who is connected to the broker, and what each holds."""

from __future__ import annotations

from starlette.responses import Response

from tickwheel.stats import ClientInfo
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.listing import listed
from tickwheel_web.dashboard.page import Viewed


async def clients(viewed: Viewed) -> Response:
    """In order of their numbers, which is that in which they came."""
    everyone = await viewed.client.clients()
    return viewed.page(
        "operations/clients.html", part=listed(viewed, everyone, lambda one: f"{one.id:020}", _text)
    )


async def disconnect(viewed: Viewed) -> Response:
    """What it holds goes to others at once."""
    number = whole(viewed.path("client"), "The number of the connection")
    does_same = ["clients", "disconnect", str(number)]
    if await viewed.client.disconnect(number):
        text = f"Connection {number} was closed. What it held goes to others. A client that is well connects again."
        return viewed.done("/clients", text, does_same)
    text = f"There is no connection {number}, or none any more. Nothing was done."
    return viewed.done("/clients", text, does_same, "warn")


def _text(one: ClientInfo) -> str:
    reads = [f"{found.topic} {found.group}" for found in one.subscriptions]
    waits = [f"{found.topic} {found.group}" for found in one.fetches]
    return "\n".join([one.peer, one.name, one.token, one.token_name, *reads, *waits])
