"""What is done with a push endpoint by a button: enable, disable, a test, another secret, delete."""

from __future__ import annotations

from typing import Final

import anyio
from starlette.responses import Response

from tickwheel import Client, EndpointAttempt
from tickwheel.protocol.readable import noun
from tickwheel.protocol.targets import signing_secrets
from tickwheel_web.dashboard.acting import need_typed
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.push.listing import shortened

MAX_SECRETS: Final = 5
LOOKS_S: Final = (0.2, 0.4, 0.8, 1.6, 2.0)
"""How long a page waits for what becomes of a test, from one look to the next: each reads the broker's log."""


async def enable(viewed: Viewed) -> Response:
    """It goes on with what waits for it."""
    name = viewed.path("endpoint")
    await viewed.client.enable_endpoint(name)
    return viewed.done(viewed.above, f"{name} goes on with what waits for it.", ["endpoints", "enable", name])


async def disable(viewed: Viewed) -> Response:
    """With a reason, if one was given."""
    name, reason = viewed.path("endpoint"), viewed.field("reason")
    await viewed.client.disable_endpoint(name, reason)
    text = f"{name} is paused: nothing is sent to it, and its messages wait."
    options = ["--reason", reason] if reason else []
    return viewed.done(viewed.above, text, ["endpoints", "disable", name, *options])


async def send_test(viewed: Viewed) -> Response:
    """Answers what became of it, if that is known soon."""
    name = viewed.path("endpoint")
    number = await viewed.client.test_endpoint(name)
    found = await _outcome(viewed.client, name, number)
    does_same = ["endpoints", "test", name]
    if found is None:
        text = f"Test {number} was sent. Nothing was heard of it yet: it is made as soon as `tickwheel push` runs."
        return viewed.done(viewed.above, text, does_same, "warn")
    if found.outcome == "acked":
        return viewed.done(viewed.above, f"Test {number} was taken: the endpoint answered 2xx.", does_same)
    text = f"Test {number} was not taken ({found.outcome}): {found.error or 'nothing was answered'}"
    return viewed.done(viewed.above, text, does_same, "bad")


async def _outcome(client: Client, name: str, number: int) -> EndpointAttempt | None:
    """None: it is not known yet."""
    for wait_s in LOOKS_S:
        await anyio.sleep(wait_s)
        for one in (await client.endpoint_attempts(name, limit=10)).attempts:
            if one.id == number and one.outcome != "leased":
                return one
    return None


async def rotate(viewed: Viewed) -> Response:
    """One more secret, with which requests are signed beside those that were. The answer shows it, once: sent again,
    the form is refused, because the version has changed."""
    name = viewed.path("endpoint")
    found = await viewed.client.endpoint(name)
    if len(found.secrets) == MAX_SECRETS:
        text = f"Nothing was done: {name} has {MAX_SECRETS} secrets already. Forget the older ones first."
        return viewed.done(viewed.above, text, tone="bad", tab="settings")
    secret = signing_secrets.new_secret()
    changed = await viewed.client.set_endpoint(
        name, secrets=[secret, *found.secrets], expected_version=version(viewed, found.version)
    )
    return viewed.page("push/secret.html", endpoint=changed, secret=secret, secrets=shortened(changed))


async def forget(viewed: Viewed) -> Response:
    """All secrets but the newest."""
    name = viewed.path("endpoint")
    found = await viewed.client.endpoint(name)
    await viewed.client.set_endpoint(
        name, secrets=found.secrets[:1], expected_version=version(viewed, found.version)
    )
    text = f"{name} no longer signs with {noun(len(found.secrets) - 1, 'older secret')}."
    does_same = ["endpoints", "set", name, "--secret", "whsec_…"]
    return viewed.done(viewed.above, text, does_same, tab="settings")


async def delete(viewed: Viewed) -> Response:
    """If its name was typed."""
    name, keeps_group = viewed.path("endpoint"), bool(viewed.field("keep_group"))
    need_typed(viewed, name)
    backlog = await viewed.client.delete_endpoint(name, keep_group=keeps_group)
    become = "stay in its group" if keeps_group else "will not be sent to it"
    text = f"{name} is deleted; {noun(backlog, 'message')} {become}."
    options = ["--keep-group"] if keeps_group else []
    return viewed.done("/endpoints", text, ["endpoints", "delete", name, *options])


def version(viewed: Viewed, otherwise: int) -> int:
    """The one that the page was made of. Raises BadArgument."""
    text = viewed.field("version")
    return whole(text, "The version") if text else otherwise
