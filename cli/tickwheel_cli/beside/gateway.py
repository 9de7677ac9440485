"""`tickwheel gateway`: clients of RocketMQ 5 at a broker, in the foreground, until Ctrl-C or SIGTERM; and their
credentials."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel.errors import GatewayMissing
from tickwheel_cli.beside.sockets import listening
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import (
    current_session,
    json_option,
    security_options,
    security_variables,
    url_option,
)
from tickwheel_cli.shared.settings_options import config_file_option, rocketmq_options

if TYPE_CHECKING:
    import trio

    from tickwheel import Client
    from tickwheel_broker.children.process import Child
    from tickwheel_broker.config.settings import Settings
    from tickwheel_gateway.config import Config
    from tickwheel_gateway.lifetime import Place
    from tickwheel_gateway.server import Serving
    from tickwheel_gateway.workers.worker import Converse

NEEDED = ("google", "h11", "h2", "prometheus_client")


@click.group(invoke_without_command=True)
@config_file_option
@rocketmq_options
@click.option(
    "--listen-fd",
    "descriptors",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Serve on a listening socket that was inherited with this number, instead of --listen.",
)
@click.option(
    "--ends-with-stdin", is_flag=True, help="End when standard input does: who started this is gone then."
)
@click.option("--as-worker", is_flag=True, hidden=True)
@url_option
@security_options
@json_option
def gateway(
    config_file: Path | None,
    descriptors: Sequence[int],
    *,
    ends_with_stdin: bool,
    as_worker: bool,
    **flags: Any,
) -> None:
    """Serve clients of RocketMQ 5 until Ctrl-C or SIGTERM.

    \b
    tickwheel gateway
    tickwheel --url tickwheel+unix:///run/tickwheel/tickwheel.sock gateway --listen 127.0.0.1:8081
    tickwheel gateway credentials add shop --token-file shop.token --file rocketmq.credentials

    A process of its own, and an ordinary client of the broker. Programs that use a client of RocketMQ 5 give its
    address as that of a proxy of RocketMQ. Settings come from where those of `tickwheel serve` come from: --listen
    is the setting rocketmq_listen. Without --credentials-file all who come are this process, with its token. SIGHUP
    loads certificates anew. Needs pip install 'tickwheel[rocketmq]'. With --workers it starts so many processes that
    serve on the one port, starts those anew that end, and answers for all of them where --metrics says.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from tickwheel_broker import logs
    from tickwheel_broker.config.load import load
    from tickwheel_broker.net.listeners import open_rocketmq_listeners
    from tickwheel_broker.net.open_files import allow_many

    if current_session().data is not None:
        raise click.UsageError("gateway needs a broker that runs: --url, not --data")
    # Whatever the file says of the broker's own directory is of no interest here.
    settings = load(config_file, flags={**flags, "rocketmq": True, "data_dir": os.curdir}).settings
    logs.configure(settings, name="tickwheel")
    try:
        from tickwheel_gateway import server
        from tickwheel_gateway.workers import supervisor
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise GatewayMissing from error
    serving = _serving(settings, ends_with_stdin=ends_with_stdin, is_worker=as_worker)
    allow_many()
    with listening(settings, descriptors, open_rocketmq_listeners) as (sockets, addresses):
        import trio

        if not as_worker:  # that has what the process has that started it
            os.nice(settings.rocketmq_niceness)
        ready = partial(_announce, addresses)
        try:
            if settings.rocketmq_workers == 1:
                trio.run(_serve, server.serve, serving, sockets, ready)
                return
            server.check(serving)
            make = partial(_worker, settings, [one.fileno() for one in sockets])
            trio.run(supervisor.supervise, settings.rocketmq_workers, make, serving.surroundings, ready)
        except supervisor.WorkersDoNotStart:
            raise CommandError(
                "workers_do_not_start",
                "the first workers ended before they served",
                advice="The log has what they said.",
            ) from None
        except OSError as error:
            if not settings.rocketmq_metrics or error.strerror is None:
                raise
            raise CommandError(
                "cannot_listen",
                f"cannot listen on {settings.rocketmq_metrics}: {error.strerror}",
                advice="Choose another place for --metrics (rocketmq_metrics).",
            ) from None


async def _serve(serve: Any, serving: Serving, sockets: Sequence[socket.socket], ready: Any) -> None:
    import trio

    from tickwheel_gateway.transport.listener import open_listeners

    listeners: list[trio.SocketListener] = []
    for one in sockets:
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(one)))
        else:  # it holds the address for several
            host, port = one.getsockname()[:2]
            listeners += await open_listeners(host, port, is_shared=True)
    await serve(serving, listeners, ready)


def _worker(settings: Settings, descriptors: Sequence[int], number: int, converse: Converse) -> Child:
    """The process of one of several. It has our settings, also when the file has others by now."""
    from tickwheel_broker.children.process import Child
    from tickwheel_broker.config.example import arguments
    from tickwheel_broker.config.fields import rocketmq_worker_flags

    url = current_session().url
    command = [
        *([] if url is None else ["--url", url]),
        "gateway",
        "--as-worker",
        *(f"--listen-fd={one}" for one in descriptors),
        *arguments(settings, rocketmq_worker_flags()),
    ]
    keeps = ("TICKWHEEL_URL", *security_variables())
    return Child(
        name=f"gateway worker {number}",
        command=command,
        descriptors=descriptors,
        keeps=keeps,
        converse=converse,
    )


def _serving(settings: Settings, *, ends_with_stdin: bool, is_worker: bool = False) -> Serving:
    from tickwheel_broker.config.places import place_of
    from tickwheel_broker.config.rocketmq import is_rocketmq_exposed
    from tickwheel_gateway.certificates import Certificates
    from tickwheel_gateway.lifetime import Surroundings
    from tickwheel_gateway.server import Serving
    from tickwheel_gateway.transport.limits import Limits

    certificates = (
        Certificates(settings.tls_certificate, settings.tls_key) if settings.tls_certificate else None
    )
    secure = {} if certificates is None else {"tls": certificates.current, "reload": certificates.reload}
    file = settings.rocketmq_credentials_file
    return Serving(
        open_client=partial(_client, current_session().url),
        config=_config(settings),
        limits=Limits(
            connections=settings.rocketmq_max_connections,
            streams=settings.rocketmq_max_streams,
            message_bytes=settings.max_frame_bytes,
            pending_bytes=settings.rocketmq_max_pending_bytes,
        ),
        credentials=Path(file) if file else None,
        is_plain_allowed=certificates is None or settings.insecure or not is_rocketmq_exposed(settings),
        surroundings=Surroundings(
            watched_at=place_of(settings.rocketmq_metrics) if settings.rocketmq_metrics else None,
            ends_with_stdin=ends_with_stdin,
        ),
        is_worker=is_worker,
        **secure,  # type: ignore[arg-type]
    )


def _config(settings: Settings) -> Config:
    from tickwheel.protocol.units import delay_levels_ms
    from tickwheel_broker.config.places import place_of
    from tickwheel_broker.config.rocketmq import groups_of
    from tickwheel_gateway.config import Config, Group

    own = groups_of(settings.rocketmq_groups)
    advertise = settings.rocketmq_advertise
    return Config(
        advertise=place_of(advertise) if advertise else None,
        max_body_bytes=settings.max_body_bytes,
        creates_topics=settings.auto_create_topics,
        queues=settings.rocketmq_queues,
        receive_batch_size=settings.rocketmq_receive_batch_size,
        long_polling_max_ms=settings.rocketmq_long_polling_max_ms,
        invisible_min_ms=settings.rocketmq_invisible_min_ms,
        invisible_max_ms=settings.rocketmq_invisible_max_ms,
        renew_lease_ms=settings.rocketmq_renew_lease_ms,
        renew_max_ms=settings.rocketmq_renew_max_ms,
        max_attempts=settings.rocketmq_max_attempts,
        retry_delays_ms=delay_levels_ms(settings.rocketmq_retry_delays),
        groups={name: Group(attempts, delays_ms or None) for name, (attempts, delays_ms) in own.items()},
        fifo_groups=tuple(settings.rocketmq_fifo_groups.split()),
        max_delay_ms=settings.rocketmq_max_delay_ms or None,
        priority_topics=tuple(settings.rocketmq_priority_topics.split()),
    )


def _client(url: str | None, token: str) -> Client:
    from tickwheel import Client

    return Client(url, name="gateway", token=token) if token else Client(url, name="gateway")


def _announce(addresses: Sequence[str], metrics: Place | None) -> None:
    from tickwheel_broker.background.collector import spare_collector

    spare_collector()
    told: dict[str, Any] = {"listen": list(addresses)} if addresses else {}
    text = f"listening on {' and '.join(addresses)}" if addresses else "listening"
    if metrics is not None:
        host, port = metrics
        told["metrics"] = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        text += f"; {told['metrics']}"
    if told:
        print_result(told, text)


# Credentials -----------------------------------------------------------------------------------------------


@gateway.group()
def credentials() -> None:
    """Access keys of programs that use a client of RocketMQ, and the token of the broker that each stands for."""


@credentials.command()
@click.argument("name")
@click.option(
    "--token-file",
    "token_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token (see: tickwheel tokens create --out).",
)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The gateway's rocketmq_credentials_file.  [default: as the configuration says]",
)
@config_file_option
@json_option
def add(name: str, token_file: Path, path: Path | None, config_file: Path | None) -> None:
    """Make an access key NAME with a secret key, add them to the file, and print them.

    \b
    tickwheel tokens create shop --grant publish:orders --out shop.token
    tickwheel gateway credentials add shop --token-file shop.token --file rocketmq.credentials

    The file is made if it is not there, for its owner alone. A gateway that runs notices it within a second.
    """
    from tickwheel_gateway.clients.credentials import add as add_pair

    path = path or _configured(config_file)
    try:
        token = token_file.read_text("utf-8").strip()
        pair = add_pair(path, name, token)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CommandError(
            "credentials_not_written",
            f"nothing was added to {path}: {reason}",
            advice="Name files that you can read, and a directory that you can write to.",
        ) from None
    print_result(
        {"access_key": pair.access_key, "secret_key": pair.secret_key, "file": str(path)},
        f"access key {pair.access_key}\nsecret key {pair.secret_key}",
    )


def _configured(config_file: Path | None) -> Path:
    from tickwheel_broker.config.load import load

    settings = load(config_file, flags={"data_dir": os.curdir}).settings
    if not settings.rocketmq_credentials_file:
        raise click.UsageError(
            "name the file with --file: the configuration has no rocketmq_credentials_file"
        )
    return Path(settings.rocketmq_credentials_file)
