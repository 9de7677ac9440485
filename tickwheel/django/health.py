"""A page for load balancers and monitoring: whether tasks can be enqueued, and how many wait.

``path("health/tasks/", tickwheel.django.health.health)``
"""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.backends import tickwheel_backends
from tickwheel.django.broker import client_of
from tickwheel.django.framework import InvalidTaskBackend
from tickwheel.protocol.errors import TickwheelError, UnknownTopic


@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """200 when all Tickwheel backends can take tasks, else 503; what it says of each is in the body.

    Via the outbox a backend can take tasks without its broker: then ``broker`` has the error, and the answer is 200.
    """
    try:
        backends = {one.alias: _state_of(one) for one in tickwheel_backends()}
    except InvalidTaskBackend as error:
        return JsonResponse({"ok": False, "error": str(error)}, status=503)
    ok = all(one["ok"] for one in backends.values())
    return JsonResponse({"ok": ok, "backends": backends}, status=200 if ok else 503)


def _state_of(backend: TickwheelBackend) -> dict[str, Any]:
    options = backend.settings
    state: dict[str, Any] = {"ok": True, "via": options.via, "broker": "ok", "database": "ok"}
    try:
        if options.via == "outbox":
            state["unsent"] = backend.outbox.waiting()
        else:
            backend.records.rows.values_list("pk").first()
    except DatabaseError as error:
        state |= {"ok": False, "database": f"{type(error).__name__}: {error}"}
    try:
        client = client_of(options)
        client.ping()
        state["queues"] = {queue: _queue(client, options, queue) for queue in sorted(backend.queues)}
    except TickwheelError as error:
        state["broker"] = f"{type(error).__name__}: {error}"
        state["ok"] = state["ok"] and options.via == "outbox"
    return state


def _queue(client: Any, options: Any, queue: str) -> dict[str, int]:
    """``backlog``: due, and not done. ``running``: in the hands of workers. ``workers``: subscriptions. ``dead``:
    given up."""
    try:
        groups = client.groups(options.topic_of(queue))
    except UnknownTopic:
        groups = []
    for group in groups:
        if group.name == options.group:
            return {
                "backlog": group.backlog,
                "running": group.leased,
                "workers": group.subscribers,
                "dead": group.dead,
            }
    return {"backlog": 0, "running": 0, "workers": 0, "dead": 0}
