"""What is done with a schedule by a button: pause, go on, send now, delete."""

from __future__ import annotations

from starlette.responses import Response

from tickwheel_web.dashboard.acting import need_typed
from tickwheel_web.dashboard.page import Viewed


async def pause(viewed: Viewed) -> Response:
    """What waits for its time is called back."""
    name = viewed.path("schedule")
    await viewed.client.pause_schedule(name)
    text = f"{name} is paused. What waited for its time was called back."
    return viewed.done(viewed.above, text, ["schedules", "pause", name])


async def resume(viewed: Viewed) -> Response:
    """With its next time."""
    name = viewed.path("schedule")
    found = await viewed.client.resume_schedule(name)
    text = f"{name} goes on." if found.next else f"{name} is no longer paused, but has no more times."
    return viewed.done(viewed.above, text, ["schedules", "resume", name], "good" if found.next else "warn")


async def trigger(viewed: Viewed) -> Response:
    """Once for each time the page was shown, however often it is pressed."""
    name, token = viewed.path("schedule"), viewed.field("token")
    sent = await viewed.client.trigger_schedule(name, token=token or None)
    return viewed.done(viewed.above, f"Sent as message {sent}.", ["schedules", "trigger", name])


async def delete(viewed: Viewed) -> Response:
    """If its name was typed."""
    name = viewed.path("schedule")
    need_typed(viewed, name)
    await viewed.client.delete_schedule(name)
    text = f"{name} is deleted. What waited for its time was called back."
    return viewed.done("/schedules", text, ["schedules", "delete", name])
