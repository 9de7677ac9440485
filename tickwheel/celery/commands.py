"""``celery tickwheel …``. Celery's program imports this as it starts, and so knows the URLs of Tickwheel."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from tickwheel.protocol.errors import TickwheelError


@click.group(name="tickwheel")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def tickwheel(context: click.Context) -> None:
    """Look at the broker of Tickwheel that the app uses."""


@tickwheel.command(cls=CeleryCommand)
@click.pass_context
def doctor(context: click.Context) -> None:
    """Say whether the broker can be reached, and how soon it answers."""
    app = context.obj.app
    try:
        with app.connection_for_write() as connection:
            connection.connect()
            answered_s = connection.connection.broker.ping()
            click.echo(f"{connection.as_uri()} answers in {1_000 * answered_s:.1f} ms")
    except (TickwheelError, OSError) as error:
        raise click.ClickException(str(error)) from error
