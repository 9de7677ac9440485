"""The handlers of a program, by topic: what ``tickwheel work`` runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S
from tickwheel.client.consumer.subscription import Start
from tickwheel.client.times import Delay
from tickwheel.protocol.errors import BadArgument
from tickwheel.worker.handler import Function, Handler, Middleware, Options
from tickwheel.worker.retry_policy import RetryPolicy

F = TypeVar("F", bound=Function)


class Handlers:
    """Collects handlers::

        handlers = tickwheel.Handlers()

        @handlers.on("mails", concurrency=50, retry=5)
        async def send_mail(message): ...

    ``middlewares``: those of all of them, around those of each.
    """

    def __init__(self, *, middlewares: Sequence[Middleware] = ()) -> None:
        self._middlewares = list(middlewares)
        self._handlers: dict[tuple[str, str], Handler] = {}

    def __len__(self) -> int:
        return len(self._handlers)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def on(
        self,
        topic: str,
        *,
        group: str = "default",
        concurrency: int | None = None,
        retry: RetryPolicy | int | None = None,
        timeout: Delay | None = None,
        middlewares: Sequence[Middleware] = (),
        prefetch: int | None = None,
        start: Start = "earliest",
        shard: str | None = None,
        max_hold: timedelta | float = DEFAULT_MAX_HOLD_S,
    ) -> Callable[[F], F]:
        """Decorates the handler of a topic; it stays the function that it was. Otherwise as ``Client.work``.

        ``concurrency``: None: 10, or what ``tickwheel work --concurrency`` says. Raises BadArgument: also for a second
        handler of a topic in the same group, which would take some of the first one's messages.
        """
        options = Options(
            group=group,
            concurrency=concurrency,
            retry=retry,
            timeout=timeout,
            middlewares=[*self._middlewares, *middlewares],
            prefetch=prefetch,
            start=start,
            shard=shard,
            max_hold=max_hold,
        )

        def add(function: F) -> F:
            handler = Handler(topic, function, options)
            if (topic, group) in self._handlers:
                raise BadArgument(
                    f"{topic!r} has two handlers in group {group!r}.",
                    advice="Give one of them a group of its own; then both get every message.",
                )
            self._handlers[topic, group] = handler
            return function

        return add

    def of_topics(self, topics: Collection[str]) -> Handlers:
        """Those of some topics."""
        found = Handlers()
        found._handlers = {key: one for key, one in self._handlers.items() if one.topic in topics}
        return found

    def by_default(self, concurrency: int) -> Handlers:
        """The same with this concurrency where none was given."""
        found = Handlers()
        for key, handler in self._handlers.items():
            options = handler.options
            if options.concurrency is None:
                options = dataclasses.replace(options, concurrency=concurrency)
            found._handlers[key] = Handler(handler.topic, handler.function, options)
        return found
