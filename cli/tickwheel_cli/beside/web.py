"""`tickwheel web`: HTTP for a broker, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel.errors import WebMissing
from tickwheel_cli.beside.sockets import listening
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option
from tickwheel_cli.shared.settings_options import config_file_option, web_options

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tickwheel_broker.config.settings import Settings


@click.command()
@config_file_option
@web_options
@click.option(
    "--listen-fd",
    "descriptors",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Serve on a listening socket that was inherited with this number, instead of --host and --unix-socket.",
)
@click.option(
    "--ends-with-stdin", is_flag=True, help="End when standard input does: who started this is gone then."
)
@url_option
@security_options
@json_option
def web(config_file: Path | None, descriptors: Sequence[int], *, ends_with_stdin: bool, **flags: Any) -> None:
    """Serve the dashboard and the HTTP API of a broker until Ctrl-C or SIGTERM.

    \b
    tickwheel web
    tickwheel --url tickwheel+unix:///run/tickwheel/tickwheel.sock web --port 8080

    A process of its own, and an ordinary client of the broker: each request goes on with the token that it
    brings (Authorization: Bearer), or with which somebody has logged in to the dashboard, which a browser shows
    at the same address. Settings come from where those of `tickwheel serve` come from: --port is
    the setting web_port. SIGHUP loads certificates anew. Needs pip install 'tickwheel[web]'.
    """
    from tickwheel_broker import logs
    from tickwheel_broker.background.collector import spare_collector
    from tickwheel_broker.config.load import load
    from tickwheel_broker.net.listeners import open_web_listeners
    from tickwheel_broker.net.open_files import allow_many, are_scarce
    from tickwheel_broker.net.tls import certificates_of

    if current_session().data is not None:
        raise click.UsageError("web needs a broker that runs: --url, not --data")
    # Whatever the file says of the broker's own directory is of no interest here.
    settings = load(config_file, flags={**flags, "web": True, "data_dir": os.curdir}).settings
    logs.configure(settings, name="tickwheel")
    app = _application(settings)
    try:
        from tickwheel_web.server import Serving, serve
    except ImportError as error:
        if error.name not in ("httptools", "uvicorn"):
            raise
        raise WebMissing from error
    certificates = certificates_of(settings)

    def reload() -> None:
        if certificates is not None:
            certificates.reload()

    def ready() -> None:
        spare_collector()
        _announce(urls)

    allow_many()
    with listening(settings, descriptors, open_web_listeners) as (sockets, urls):
        serving = Serving(
            max_connections=settings.web_max_connections,
            are_files_scarce=are_scarce,
            max_header_bytes=settings.web_max_header_bytes,
            request_s=settings.web_request_timeout_ms / 1_000,
            tls=None if certificates is None else certificates.context,
            ends_with_stdin=ends_with_stdin,
            ready=ready,
            reload=reload,
        )
        serve(app, sockets, serving)


def _application(settings: Settings) -> Starlette:
    import tickwheel.web

    return tickwheel.web.app(
        current_session().url,
        max_request_bytes=settings.web_max_request_bytes,
        request_timeout=settings.web_request_timeout_ms / 1_000,
        max_polls=settings.web_max_polls,
        max_streams=settings.web_max_streams,
        cors_origins=settings.web_cors_origins.split(),
        forwarded_from=settings.web_forwarded_from.split(),
        hosts=[*settings.web_hosts.split(), *filter(None, [settings.web_host])],
        read_only=settings.web_read_only,
        hide_bodies=settings.web_hide_bodies,
        hide_headers=settings.web_hide_headers.split(),
        lateness_threshold=settings.web_lateness_threshold_ms / 1_000,
        trusted_header=settings.web_trusted_header,
        trusted_from=settings.web_trusted_from.split(),
        trusted_users=settings.web_trusted_users,
    )


def _announce(urls: Sequence[str]) -> None:
    if urls:
        print_result({"url": urls[0], "urls": urls}, f"listening on {' and '.join(urls)}")
