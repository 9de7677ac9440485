"""`tickwheel flight`: tables by Arrow Flight, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel.errors import ConfigError, FlightMissing, TickwheelError
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import (
    check_directory,
    current_session,
    json_option,
    security_options,
    url_option,
)
from tickwheel_cli.shared.settings_options import config_file_option, flight_options

if TYPE_CHECKING:
    from tickwheel_broker.config.settings import Settings
    from tickwheel_flight.process import Serving

_NICEST = 19


@click.command()
@config_file_option
@flight_options
@click.option(
    "--ends-with-stdin", is_flag=True, help="End when standard input does: who started this is gone then."
)
@url_option
@security_options
@json_option
def flight(config_file: Path | None, *, ends_with_stdin: bool, **flags: Any) -> None:
    """Serve the tables messages and events by Arrow Flight until Ctrl-C or SIGTERM.

    \b
    tickwheel flight --data ./data
    tickwheel --url tickwheel+unix:///run/tickwheel/tickwheel.sock flight --data ./data --listen 0.0.0.0:7416

    A process of its own beside the broker: it reads the same data directory, and asks the broker what each reader may
    see, with the token that the reader brings (authorization: Bearer). Spark, DuckDB, Polars and pandas read from it
    on any machine, and `tickwheel pipeline schedule` has it put files of bulk jobs into its directory staging. Settings
    come from where those of `tickwheel serve` come from: --listen is the setting flight_listen; `tickwheel serve
    --flight` starts it beside the broker. SIGHUP loads certificates anew. Needs pip install 'tickwheel[flight]'.
    """
    from tickwheel_broker import logs
    from tickwheel_broker.config.load import load

    if flags["data_dir"] is None and current_session().data is not None:
        flags["data_dir"] = current_session().data
    # The broker's socket is told by --url: where the broker would make the socket by itself is of no interest here.
    settings = load(config_file, flags={**flags, "flight": True, "unix_socket": "unused.sock"}).settings
    check_directory(Path(settings.data_dir))
    logs.configure(settings, name="tickwheel")
    try:
        from tickwheel_flight.process import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise FlightMissing from error
    _stand_back(settings.flight_niceness)
    serving = _serving(settings, ends_with_stdin=ends_with_stdin)
    try:
        serve(serving, lambda place: print_result({"url": place}, f"listening on {place}"))
    except OSError as error:
        if isinstance(error, TickwheelError):  # there is no connection to the broker
            raise
        from tickwheel_broker.net.listeners import explain

        raise explain(error, settings.flight_listen, "Choose another --listen (flight_listen).") from None


def _stand_back(niceness: int) -> None:
    """Has all threads of this process stand back, and those that they start. A niceness of 20: whoever else wants the
    processor has it at once. A thread that is only nice keeps the processor for some milliseconds when the broker
    wakes, and messages are late by them. Raises ConfigError where the system does not let it."""
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + niceness, _NICEST)
    try:
        for thread in map(int, os.listdir("/proc/self/task")):
            with suppress(ProcessLookupError):  # a thread that has ended meanwhile
                if niceness > _NICEST:
                    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
                else:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
    except OSError as error:
        raise ConfigError(
            f"The process cannot stand back as flight_niceness = {niceness} says: {error.strerror}.",
            advice="Set flight_niceness to 0, or allow sched_setscheduler and setpriority where it runs.",
        ) from error


def _serving(settings: Settings, *, ends_with_stdin: bool) -> Serving:
    from tickwheel_broker.config.flight import flight_url, is_flight_exposed
    from tickwheel_flight.process import Serving

    return Serving(
        place=flight_url(settings),
        url=current_session().url,
        directory=Path(settings.data_dir),
        max_staging_bytes=settings.max_staging_bytes,
        streams=settings.flight_streams,
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        client_ca=settings.tls_client_ca,
        needs_tokens=is_flight_exposed(settings) and not settings.insecure and not settings.tls_client_ca,
        ends_with_stdin=ends_with_stdin,
    )
