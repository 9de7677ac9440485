"""`tickwheel work`: calls a program's handlers for messages, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tickwheel.errors import WorkMissing
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option
from tickwheel_cli.working.loading import load
from tickwheel_cli.working.reloading import reload

if TYPE_CHECKING:
    from datetime import timedelta

    from tickwheel import Client, Handlers
    from tickwheel.worker.worker import Worker


@click.command()
@click.argument("name", metavar="MODULE:HANDLERS")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="How many messages a handler has at once, where it does not say so itself.  [default: 10]",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only the handlers of this topic.")
@click.option(
    "--drain",
    type=DURATION,
    default="30s",
    show_default=True,
    help="So long handlers may take to finish when it is told to stop.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Answer /metrics, /livez and /readyz there.")
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    show_default=True,
    help="The event loop of handlers that are coroutine functions.",
)
@click.option(
    "--reload", "reloads", is_flag=True, help="For development: start again when a file here changes."
)
@url_option
@security_options
@json_option
def work(
    name: str,
    concurrency: int | None,
    topics: tuple[str, ...],
    drain: timedelta,
    metrics: str | None,
    backend: str,
    *,
    reloads: bool,
) -> None:
    """Call a program's handlers for messages, until Ctrl-C or SIGTERM.

    \b
    tickwheel work app:handlers --concurrency 50
    tickwheel --url tickwheels://broker:7411 work app:handlers --token-file work.token --metrics 127.0.0.1:7415

    app:handlers is a tickwheel.Handlers in app.py. A message whose handler returns is acked; one whose handler
    raises comes again. Told to stop, it begins nothing new, gives back what was not begun, and finishes the rest
    within --drain; told twice, it does not wait.
    """
    if current_session().data is not None:
        raise click.UsageError("work needs a broker that runs: --url, not --data")
    if reloads:
        reload([word for word in sys.argv[1:] if word != "--reload"], drain.total_seconds())
        return
    place = None if metrics is None else _place(metrics)
    handlers = _chosen(load(name), topics)
    if concurrency is not None:
        handlers = handlers.by_default(concurrency)
    import anyio

    from tickwheel import Client

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    client = Client(current_session().url, name="work")
    if anyio.run(partial(_serve, client, handlers, drain, place), backend=backend):
        # Python would wait for threads that are still at work. Their messages are given back already.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _place(text: str) -> tuple[str, int]:
    from tickwheel_broker.config.places import place_of

    try:
        import h11  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise WorkMissing from error
    try:
        return place_of(text)
    except ValueError as error:
        raise click.UsageError(f"--metrics: {error}") from None


def _chosen(handlers: Handlers, topics: tuple[str, ...]) -> Handlers:
    if not topics:
        return handlers
    known = {handler.topic for handler in handlers}
    for topic in topics:
        if topic not in known:
            raise CommandError(
                "not_found",
                f"there is no handler of {topic!r}",
                advice=f"There are those of {', '.join(sorted(known))}.",
            )
    return handlers.of_topics(topics)


async def _serve(client: Client, handlers: Handlers, drain: timedelta, place: tuple[str, int] | None) -> bool:
    """Whether threads are left with what they were handling."""
    import anyio

    from tickwheel.client.consumer.message import Batch
    from tickwheel.worker.outcomes import Kind
    from tickwheel.worker.worker import Worker

    async with AsyncExitStack() as stack:
        opened = None if place is None else await _listening(stack, place)
        await stack.enter_async_context(client)
        worker = Worker(client, Batch, handlers, drain=drain)
        async with anyio.create_task_group() as group:
            told: dict[str, Any] = {"ready": True, "topics": [handler.topic for handler in handlers]}
            if place is not None and opened is not None:
                told["metrics"] = await group.start(_watch, client, worker, place[0], opened)
            at = f"; {told['metrics']}" if opened is not None else ""
            print_result(told, f"{', '.join(told['topics'])}: waiting for messages{at}")
            await worker.run(signals=True)
            group.cancel_scope.cancel()
    return any(
        not handler.is_async and tally.outcomes[Kind.INTERRUPTED]
        for handler, tally in zip(handlers, worker.tallies, strict=True)
    )


async def _nothing() -> None:
    """The figures are looked at when they are asked for."""


async def _listening(stack: AsyncExitStack, place: tuple[str, int]) -> Any:
    """Listens there, as long as ``stack`` is open. Raises CommandError."""
    import anyio

    try:
        opened = await anyio.create_tcp_listener(local_host=place[0], local_port=place[1])
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise CommandError(
            "cannot_listen",
            f"cannot listen on {place[0]}:{place[1]} for --metrics: {reason}",
            advice="Choose an address of this machine and a port that is free; with port 0 any is taken.",
        ) from None
    return await stack.enter_async_context(opened)


async def _watch(client: Client, worker: Worker, host: str, opened: Any, *, task_status: Any) -> None:
    import anyio
    from anyio.abc import SocketAttribute

    from tickwheel.sharing.listener import Listener
    from tickwheel_cli.working.figures import Figures

    watching = Listener(
        Figures(worker.tallies), lambda: client.is_connected and not worker.is_stopping, _nothing
    )
    async with anyio.create_task_group() as group:
        for one in opened.listeners:
            group.start_soon(watching.listen, one)
        port = opened.listeners[0].extra(SocketAttribute.local_address)[1]
        task_status.started(f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
