"""Every setting of the broker: its name, type, limits, default and the sentence that explains it.

This table is the only place. The configuration file, the environment, the flags and the commented example
file (`docs/tickwheel.example.toml`) are all read off it. A setting has one name in four spellings:
`ack_wait` in the file, `TICKWHEEL_ACK_WAIT` in the environment, `--ack-wait` as a flag, `ack_wait=` as a
Python argument.

Inside the program a duration is an `int` of milliseconds and its attribute ends in `_ms`; outside it is
written `30s`, without the suffix. A size is an `int` of bytes; outside `4MiB` works as well.
"""

from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from tickwheel.protocol.limits import MAX_CREDIT

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def _duration(section: str, help_text: str, low_ms: int, high_ms: int) -> Any:
    return Meta(ge=low_ms, le=high_ms, description=help_text, extra={"section": section, "unit": "duration"})


def _size(section: str, help_text: str, low_bytes: int, high_bytes: int) -> Any:
    return Meta(
        ge=low_bytes, le=high_bytes, description=help_text, extra={"section": section, "unit": "size"}
    )


def _count(section: str, help_text: str, low: int, high: int) -> Any:
    return Meta(ge=low, le=high, description=help_text, extra={"section": section, "unit": "count"})


def _plain(section: str, help_text: str) -> Any:
    return Meta(description=help_text, extra={"section": section, "unit": "plain"})


_LISTEN, _SECURITY, _STORAGE, _LIMITS = "Listening", "Security", "Storage", "Limits"
_DELIVERY, _TIMEOUTS, _MONITORING, _LOG = "Delivery", "Time-outs", "Monitoring", "Logging"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One validated set of settings. Build it with `tickwheel_broker.config.load.load`, or directly in tests."""

    # -- listening ------------------------------------------------------------------------------------------
    listen_host: Annotated[
        str,
        _plain(
            _LISTEN,
            "Address of the TCP listener. One that other machines can reach needs TLS, and tokens or tls_client_ca.",
        ),
    ] = "127.0.0.1"
    listen_port: Annotated[
        int, _count(_LISTEN, "Port of the TCP listener. 0 lets the system choose a free one.", 0, 65_535)
    ] = 7411
    listen_tcp: Annotated[bool, _plain(_LISTEN, "Whether to listen on TCP at all.")] = True
    unix_socket: Annotated[
        str, _plain(_LISTEN, "Path of a Unix socket to listen on as well. Empty: none. At most 100 bytes.")
    ] = ""
    insecure: Annotated[
        bool,
        _plain(
            _LISTEN,
            "Allow an address that other machines can reach without TLS, or without tokens and tls_client_ca: "
            "whoever reaches the port, or listens on the way, can then read and cancel everything.",
        ),
    ] = False

    # -- security -------------------------------------------------------------------------------------------
    tls_certificate: Annotated[
        str,
        _plain(
            _SECURITY,
            "PEM file of the TLS certificate and its chain. Empty: no TLS on TCP. SIGHUP loads it anew.",
        ),
    ] = ""
    tls_key: Annotated[
        str, _plain(_SECURITY, "PEM file of its key, without password. Empty: it is in tls_certificate, too.")
    ] = ""
    tls_client_ca: Annotated[
        str,
        _plain(
            _SECURITY,
            "PEM file of a CA. Only clients that show a certificate of it can connect over TCP. Empty: any client can.",
        ),
    ] = ""

    tokens_file: Annotated[
        str,
        _plain(
            _SECURITY,
            "File of the tokens that `tickwheel tokens` manages. Empty: tokens.json in the data directory, if it is "
            "there. As soon as there is a token, nobody gets in by TCP without one.",
        ),
    ] = ""
    audit_log: Annotated[
        str,
        _plain(
            _SECURITY,
            "File to which log-ins, refusals and changes of topics and tokens are appended, a JSON line each. SIGHUP "
            "opens it anew. Empty: they are in the ordinary log.",
        ),
    ] = ""

    # -- storage --------------------------------------------------------------------------------------------
    data_dir: Annotated[
        str,
        _plain(_STORAGE, "Directory of the log and everything derived from it. Created if it is missing."),
    ] = "tickwheel-data"
    segment_bytes: Annotated[
        int,
        _size(
            _STORAGE, "Size of one log segment. Space is reserved a whole segment at a time.", MIB, 2 * GIB
        ),
    ] = 64 * MIB

    disk_reserve_bytes: Annotated[
        int,
        _size(
            _STORAGE,
            "How much disk space to keep, at most, for what accepted messages still need when the disk is full: "
            "about 200 bytes each, less in batches.",
            0,
            1024 * GIB,
        ),
    ] = 16 * MIB

    durability: Annotated[
        Literal["always", "interval", "os"],
        _plain(
            _STORAGE,
            "When a send or ack is confirmed. `always`: when it is on the disk. `interval`: at once, synced each "
            "sync_interval; a power loss loses up to that much of what was confirmed. `os`: at once, synced when "
            "the system likes and on shutdown; a power loss loses everything since. None loses anything when "
            "only the broker is killed.",
        ),
    ] = "always"
    sync_interval_ms: Annotated[
        int, _duration(_STORAGE, "How often `durability = interval` syncs.", 1, HOUR_MS)
    ] = 1 * SECOND_MS

    purge_after_ms: Annotated[
        int,
        _duration(
            _STORAGE,
            "How long messages stay, and can be queried, after every group has acknowledged them. Then their disk "
            "space is given back, a segment at a time. Topics can have their own.",
            0,
            365 * DAY_MS,
        ),
    ] = DAY_MS

    # -- limits ---------------------------------------------------------------------------------------------
    max_body_bytes: Annotated[
        int, _size(_LIMITS, "The largest body of a message, at most 16MiB.", 0, 16 * MIB)
    ] = 4 * MIB
    max_frame_bytes: Annotated[
        int,
        _size(
            _LIMITS,
            "The largest frame that a client may send. Must hold one largest message.",
            64 * KIB,
            64 * MIB,
        ),
    ] = 20 * MIB
    max_connections: Annotated[
        int, _count(_LIMITS, "Connections at a time; one more is told `too_many_connections`.", 1, 100_000)
    ] = 1_000
    max_connections_per_address: Annotated[
        int,
        _count(
            _LIMITS,
            "Connections from one IP address (IPv6: from one /64 network) at a time; one more is told "
            "`too_many_connections_from_address`. Unix sockets are not counted.",
            1,
            100_000,
        ),
    ] = 1_000
    max_topics: Annotated[int, _count(_LIMITS, "Topics in the data directory.", 1, 30_000)] = 10_000
    max_groups: Annotated[int, _count(_LIMITS, "Consumer groups of all topics together.", 1, 30_000)] = 10_000
    max_subscriptions: Annotated[
        int, _count(_LIMITS, "Subscriptions of all connections together.", 1, 65_000)
    ] = 10_000
    auto_create_topics: Annotated[
        bool,
        _plain(_LIMITS, "Create a topic when it is first used. If false, only existing topics can be used."),
    ] = True
    auto_create_groups: Annotated[
        bool,
        _plain(
            _LIMITS,
            "Create a consumer group when it is first used. If false, only existing groups can be used.",
        ),
    ] = True
    max_backlog_messages: Annotated[
        int,
        _count(
            _LIMITS,
            "Messages that may be accepted but not yet on the wheel. Beyond this, producers must wait.",
            1_000,
            100_000_000,
        ),
    ] = 500_000
    max_credit: Annotated[
        int,
        _count(_LIMITS, "Messages that one subscription may ask to hold un-acknowledged.", 1, MAX_CREDIT),
    ] = MAX_CREDIT
    max_receive_bytes: Annotated[
        int,
        _size(
            _LIMITS,
            "Memory for frames larger than 512KiB while they arrive, of all connections together. Beyond it "
            "connections with such frames are not read from until others are done. At least max_frame_bytes.",
            MIB,
            1024 * GIB,
        ),
    ] = 256 * MIB
    write_high_water_bytes: Annotated[
        int,
        _size(_LIMITS, "Bytes queued for one connection before it gets no more deliveries.", 64 * KIB, GIB),
    ] = 4 * MIB

    # -- delivery -------------------------------------------------------------------------------------------
    ack_wait_ms: Annotated[
        int,
        _duration(_DELIVERY, "A message not acknowledged for this long is delivered again.", 1, 365 * DAY_MS),
    ] = 30 * SECOND_MS
    min_backoff_ms: Annotated[
        int,
        _duration(
            _DELIVERY,
            "The n-th redelivery of a message waits min_backoff · 2^(n-1), but not less than ack_wait nor "
            "more than max_backoff. 0: the same as ack_wait.",
            0,
            DAY_MS,
        ),
    ] = 0
    max_backoff_ms: Annotated[
        int,
        _duration(_DELIVERY, "The longest wait before a redelivery. Not below ack_wait.", 1, 365 * DAY_MS),
    ] = HOUR_MS

    delay_levels: Annotated[
        str, _plain(_DELIVERY, "What delay_level 1, 2, … of a send mean, as in RocketMQ 4.")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    check_after_ms: Annotated[
        int,
        _duration(
            _DELIVERY, "A prepared message that nobody decided about is asked after this first.", 1, DAY_MS
        ),
    ] = 6 * SECOND_MS
    check_interval_ms: Annotated[
        int,
        _duration(
            _DELIVERY, "And then again this often; for topics of prepared messages that are new.", 1, DAY_MS
        ),
    ] = 30 * SECOND_MS
    check_attempts: Annotated[
        int,
        _count(
            _DELIVERY, "So many times; then it is moved to the dead letters of prepared messages.", 1, 1_000
        ),
    ] = 15

    # -- time-outs ------------------------------------------------------------------------------------------
    handshake_timeout_ms: Annotated[
        int, _duration(_TIMEOUTS, "A new connection must have said HELLO by then.", 10, HOUR_MS)
    ] = 10 * SECOND_MS
    frame_timeout_ms: Annotated[
        int,
        _duration(
            _TIMEOUTS,
            "A frame that was begun must have arrived whole by then, however steadily its bytes come.",
            10,
            DAY_MS,
        ),
    ] = 2 * MINUTE_MS
    idle_timeout_ms: Annotated[
        int,
        _duration(_TIMEOUTS, "A connection that sends nothing (not even PING) is closed.", 100, 30 * DAY_MS),
    ] = 5 * MINUTE_MS
    send_timeout_ms: Annotated[
        int,
        _duration(
            _TIMEOUTS,
            "A client that does not read what it was sent (64KiB in this time, or all) is closed.",
            100,
            DAY_MS,
        ),
    ] = 30 * SECOND_MS
    drain_timeout_ms: Annotated[
        int, _duration(_TIMEOUTS, "On shutdown, how long clients may finish and acknowledge.", 0, HOUR_MS)
    ] = 2 * SECOND_MS

    # -- monitoring -----------------------------------------------------------------------------------------
    http_listen: Annotated[
        bool,
        _plain(
            _MONITORING,
            "Whether to answer /livez, /readyz and /metrics over HTTP; with TLS where tls_certificate is set. "
            "Needs pip install 'tickwheel[server]'.",
        ),
    ] = False
    http_host: Annotated[
        str,
        _plain(_MONITORING, "Address of the HTTP listener; the rules for listen_host hold for it as well."),
    ] = "127.0.0.1"
    http_port: Annotated[
        int, _count(_MONITORING, "Port of the HTTP listener. 0 lets the system choose a free one.", 0, 65_535)
    ] = 7412
    metrics_topics: Annotated[
        int,
        _count(
            _MONITORING,
            "At most so many topics, the oldest ones, and so many of their groups have metrics of their own; those "
            "of all others are added up as `other`.",
            0,
            1_000,
        ),
    ] = 100

    # -- logging --------------------------------------------------------------------------------------------
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _plain(_LOG, "The least level logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        _plain(_LOG, "`auto` writes readable lines to a terminal and JSON otherwise."),
    ] = "auto"


class SettingField(msgspec.Struct, frozen=True):
    """What the configuration file, the environment, the flags and the help pages need to know of one
    setting.
    """

    name: str
    attribute: str
    section: str
    unit: Literal["duration", "size", "count", "plain"]
    help_text: str
    default: int | str | bool
    choices: tuple[str, ...]
    annotation: Any

    @property
    def is_switch(self) -> bool:
        """Whether the setting is true or false."""
        return isinstance(self.default, bool)

    @property
    def variable(self) -> str:
        """The environment variable of this setting."""
        return f"TICKWHEEL_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command-line flag of this setting."""
        return "--" + self.name.replace("_", "-")


def _fields() -> dict[str, SettingField]:
    hints = msgspec.inspect.type_info(Settings)
    assert isinstance(hints, msgspec.inspect.StructType)
    annotations = get_type_hints(Settings, include_extras=True)
    found: dict[str, SettingField] = {}
    for field in hints.fields:
        annotated = annotations[field.name]
        meta: Meta = annotated.__metadata__[0]
        assert meta.extra is not None
        assert meta.description is not None
        unit = meta.extra["unit"]
        name = field.name.removesuffix("_ms") if unit == "duration" else field.name
        choices = getattr(annotated.__origin__, "__args__", ())
        found[name] = SettingField(
            name=name,
            attribute=field.name,
            section=meta.extra["section"],
            unit=unit,
            help_text=meta.description,
            default=field.default,
            choices=choices,
            annotation=annotated,
        )
    return found


FIELDS: dict[str, SettingField] = _fields()
"""All settings by their outward name, in the order in which they are documented."""
