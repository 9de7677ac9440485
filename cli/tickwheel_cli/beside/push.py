"""`tickwheel push`: sends messages to the URLs of endpoints, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import ipaddress
import os
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tickwheel.errors import PushMissing
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.options import Parsed
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option
from tickwheel_cli.shared.settings_options import config_file_option

if TYPE_CHECKING:
    from tickwheel_broker.config.settings import Settings as BrokerSettings
    from tickwheel_push.process import Settings
    from tickwheel_push.server import Place


def _network(text: str) -> str:
    return str(ipaddress.ip_network(text))


NETWORK = Parsed("NETWORK", _network)


@click.command()
@config_file_option
@click.option(
    "--allow-network",
    "networks",
    type=NETWORK,
    multiple=True,
    help="Also call addresses of this network, such as 10.0.0.0/8.  [default: public addresses only]",
)
@click.option("--allow-http/--no-allow-http", default=None, help="Also call URLs without TLS.")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65_535),
    multiple=True,
    help="A port that may be called; several are given one by one.  [default: 443, 80]",
)
@click.option(
    "--endpoint-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA of endpoints' certificates, besides those that the system knows.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Answer /metrics, /livez and /readyz there.")
@click.option(
    "--drain",
    metavar="DURATION",
    help="So long answers are waited for at the end; the rest goes back.  [default: 30s]",
)
@click.option("--refresh", metavar="DURATION", help="So often to look for changed endpoints.  [default: 1s]")
@url_option
@security_options
@json_option
def push(
    config_file: Path | None,
    networks: tuple[str, ...],
    ports: tuple[int, ...],
    endpoint_ca: Path | None,
    metrics: str | None,
    drain: str | None,
    refresh: str | None,
    *,
    allow_http: bool | None,
) -> None:
    """Send messages to the URLs of endpoints (see: tickwheel endpoints) until Ctrl-C or SIGTERM.

    \b
    tickwheel push
    tickwheel --url tickwheels://broker:7411 push --token-file push.token --metrics 127.0.0.1:7414

    A process of its own, and an ordinary client of the broker; a token needs push for the topics. It calls
    nothing but https on public addresses, unless it is allowed here. Settings come from where those of
    `tickwheel serve` come from: --allow-network is the setting push_allow_network, also
    TICKWHEEL_PUSH_ALLOW_NETWORK. Needs pip install 'tickwheel[push]'.
    """
    if current_session().data is not None:
        raise click.UsageError("push needs a broker that runs: --url, not --data")
    if metrics is not None:
        _check_place(metrics)
    from tickwheel_broker import logs
    from tickwheel_broker.config.load import load
    from tickwheel_broker.config.places import place_of
    from tickwheel_broker.net.open_files import allow_many

    given = load(  # whose data directory is of no interest here
        config_file,
        flags={
            "data_dir": os.curdir,
            "push_allow_network": " ".join(networks) or None,
            "push_allow_http": allow_http,
            "push_port": " ".join(map(str, ports)) or None,
            "push_endpoint_ca": endpoint_ca,
            "push_metrics": metrics,
            "push_drain": drain,
            "push_refresh": refresh,
        },
    ).settings
    try:
        from tickwheel_push.server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("h11", "httpcore2", "prometheus_client"):
            raise
        raise PushMissing from error
    settings = _settings(given)
    allow_many()
    import anyio

    from tickwheel import Client

    logs.configure_plain()
    watched_at = place_of(given.push_metrics) if given.push_metrics else None
    client = Client(current_session().url, name="push")
    try:
        anyio.run(partial(serve, client, settings, watched_at, _announce), backend="trio")
    except OSError as error:
        if watched_at is None or error.strerror is None:
            raise
        raise CommandError(
            "cannot_listen",
            f"cannot listen on {given.push_metrics}: {error.strerror}",
            advice="Choose another place for --metrics (push_metrics).",
        ) from None


def _settings(given: BrokerSettings) -> Settings:
    from tickwheel_push.http.addresses import Allowed, networks_of
    from tickwheel_push.process import Settings

    trusted = ssl.create_default_context()
    if given.push_endpoint_ca:
        _trust(trusted, given.push_endpoint_ca)
    ports = frozenset(map(int, given.push_port.split()))
    return Settings(
        allowed=Allowed(networks_of(given.push_allow_network.split()), given.push_allow_http, ports),
        trusted=trusted,
        refresh_s=given.push_refresh_ms / 1_000,
        drain_s=given.push_drain_ms / 1_000,
    )


def _trust(trusted: ssl.SSLContext, path: str) -> None:
    try:
        trusted.load_verify_locations(path)
    except OSError as error:  # errors of TLS are some, too
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise CommandError(
            "bad_certificate", f"{path} has no certificate: {reason}", advice="Give a PEM file."
        ) from None


def _check_place(text: str) -> None:
    from tickwheel_broker.config.places import place_of

    try:
        place_of(text)
    except ValueError as error:
        raise click.UsageError(f"--metrics: {error}") from None


def _announce(place: Place | None) -> None:
    from tickwheel_broker.background.collector import spare_collector

    spare_collector()
    if place is None:
        print_result({"ready": True}, "endpoints are served")
        return
    host, port = place
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print_result({"ready": True, "metrics": f"{address}/metrics"}, f"endpoints are served; {address}/metrics")
