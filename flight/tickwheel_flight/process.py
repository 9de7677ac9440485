"""The whole of `tickwheel flight`: a server, and what ends it or has it load its certificates anew."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import queue
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tickwheel.errors import (
    BadCertificate,
    ConfigError,
    InsecureListener,
    LoginRequired,
)
from tickwheel.sync import Client
from tickwheel_flight.bulk.jobs import Jobs
from tickwheel_flight.bulk.staging import Staging
from tickwheel_flight.callers import Callers, log_in
from tickwheel_flight.directory import Directory
from tickwheel_flight.reading import Reading
from tickwheel_flight.server import FlightServer
from tickwheel_flight.turns import Turns

DRAIN_S: Final = 1.0
"""So long streams may take to notice that the process ends, or listens anew: less than the broker waits for it."""
_CONNECT_S: Final = 10.0
_LOOK_S: Final = 1.0
_STREAMS_A_CORE: Final = 4
_M_ARENA_MAX: Final = -8
"""A parameter of glibc's ``mallopt``: how many arenas the threads share."""
_ARENAS: Final = 2

_log = logging.getLogger("tickwheel.flight")


@dataclass(frozen=True, slots=True)
class Serving:
    """``place``: where to listen, as grpc://host:port or grpc+tls://host:port. ``url``: of the broker, None: the
    client's default. ``max_staging_bytes``: of files of bulk jobs together. ``streams``: batches that are made at a
    time, 0: four for each core. The files are of TLS, empty:
    there is none."""

    place: str
    url: str | None
    directory: Path
    max_staging_bytes: int
    streams: int = 0
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    needs_tokens: bool = False
    """Other machines may reach the place, and nothing but tokens keeps strangers out."""
    ends_with_stdin: bool = False

    def check(self) -> None:
        """Whether the broker has the log of this directory, and asks strangers for a token if need be. Raises what
        connecting raises, ``SourceError``, ConfigError, InsecureListener."""
        self._check_tokens()
        moment, _ = Directory(self.directory).now()
        try:
            with Client(self.url, name="flight", connect_timeout=_CONNECT_S) as client:
                timeline = client.timeline
        except LoginRequired:
            _log.warning("whether the broker has the log of this directory is not known: it wants a token")
            return
        if timeline and timeline != moment.log:
            raise ConfigError(
                f"{self.directory} holds the log {moment.log}, and the broker has {timeline}.",
                advice="Name the data directory of the broker that is asked for rights: --data, --url.",
            )

    def _check_tokens(self) -> None:
        if not self.needs_tokens:
            return
        with suppress(LoginRequired):
            log_in(self.url, "", "unknown")
            raise InsecureListener(
                f"Other machines may reach {self.place}, and the broker has no tokens.",
                advice="Make tokens (tickwheel tokens create), set tls_client_ca, listen on 127.0.0.1, or set "
                "insecure = true.",
            )


def serve(serving: Serving, ready: Callable[[str], None]) -> None:
    """Until SIGTERM or SIGINT, or the end of standard input; SIGHUP loads certificates anew. To be called in the main
    thread. ``ready`` is called with the place, once it listens there. Raises what `Serving.check` raises,
    BadCertificate, OSError where it cannot listen."""
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda found, frame: events.put(signal.Signals(found).name))
    if serving.ends_with_stdin:
        threading.Thread(target=_wait_for_end, args=(events,), daemon=True).start()
    serving.check()
    # The other pools keep a page of each size for each thread: 190 MiB more with 200 streams.
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError, OSError):  # another libc: each thread of a stream has what it keeps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    cores = len(os.sched_getaffinity(0))
    turns = Turns(serving.streams or _STREAMS_A_CORE * cores)
    callers = Callers(partial(log_in, serving.url))
    directory = Directory(serving.directory)
    jobs = Jobs(serving.url, Staging(directory.path, serving.max_staging_bytes))
    left: list[FlightServer] = []
    reading = Reading(directory, turns)
    server = _listen(serving.place, (reading, callers, jobs), _tls(serving))
    place = f"{serving.place.rpartition(':')[0]}:{server.port}"
    ready(place)
    while (tls := _next_tls(events, serving)) is not None:
        reading.stop()
        if not _shut_down(server):
            left.append(server)  # gRPC listens no more, and its streams may go on
        reading = Reading(directory, turns)
        server = _listen(place, (reading, callers, jobs), tls)
        _log.info("certificates are loaded anew")
    reading.stop()
    jobs.staging.stop()
    if not _shut_down(server) or left:
        sys.stdout.flush()
        os._exit(0)  # a reader that stands still keeps its call open, and nothing of Arrow Flight ends it


def _next_tls(events: queue.SimpleQueue[str], serving: Serving) -> dict[str, Any] | None:
    """Waits for new certificates; None: it is to end. Bad ones are logged, and the old ones stay."""
    while _next_event(events) == "SIGHUP":
        if serving.certificate:
            try:
                return _tls(serving)
            except BadCertificate as error:
                _log.error("the new certificate is not used; the old one stays: %s", error)
    return None


def _next_event(events: queue.SimpleQueue[str]) -> str:
    """Waits for an event. A signal that comes right before this thread waits, or to a thread of gRPC, wakes nobody:
    Python runs its handler when this thread looks again."""
    while True:
        with suppress(queue.Empty):
            return events.get(timeout=_LOOK_S)


def _listen(place: str, parts: tuple[Reading, Callers, Jobs], tls: dict[str, Any]) -> FlightServer:
    """Raises OSError."""
    try:
        return FlightServer(place, *parts, **tls)
    except (OSError, pa.ArrowException) as error:
        _try(place)
        raise OSError(errno.EINVAL, f"gRPC does not listen: {error}") from None


def _try(place: str) -> None:
    """gRPC says on standard error why it cannot listen, and nothing to its caller: so without gRPC. Raises OSError."""
    host, _, port = place.partition("://")[2].rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)


def _shut_down(server: FlightServer) -> bool:
    """Whether all its calls have ended."""
    closing = threading.Thread(target=server.shutdown, daemon=True)
    closing.start()
    closing.join(DRAIN_S)
    if closing.is_alive():
        _log.warning("readers that stand still are left")
    return not closing.is_alive()


def _wait_for_end(events: queue.SimpleQueue[str]) -> None:
    # Not through sys.stdin: a thread that waits in there would be in the way of the interpreter's end.
    with suppress(OSError):
        while os.read(0, 4_096):
            pass
    events.put("end of standard input")


def _tls(serving: Serving) -> dict[str, Any]:
    """Raises BadCertificate."""
    if not serving.certificate:
        return {}
    certificate, key = Path(serving.certificate), Path(serving.key or serving.certificate)
    try:
        # OpenSSL says what is wrong with them; gRPC would say nothing, and refuse each connection.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        found: dict[str, Any] = {"tls_certificates": [(certificate.read_bytes(), key.read_bytes())]}
    except (OSError, ValueError) as error:
        raise BadCertificate(f"The certificate {certificate} and its key cannot be used: {error}.") from error
    try:
        if serving.client_ca:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(serving.client_ca)
            found |= {"verify_client": True, "root_certificates": Path(serving.client_ca).read_bytes()}
    except (OSError, ValueError) as error:
        raise BadCertificate(f"The CA file {serving.client_ca} cannot be used: {error}.") from error
    return found
