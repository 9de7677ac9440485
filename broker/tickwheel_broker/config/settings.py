"""Every setting of the broker: its name, type, limits, default and the sentence that explains it.

This table is the only place. The configuration file, the environment, the flags and the commented example
file (`docs/tickwheel.example.toml`) are all read off it, through `fields`. A setting has one name in four spellings:
`ack_wait` in the file, `TICKWHEEL_ACK_WAIT` in the environment, `--ack-wait` as a flag, `ack_wait=` as a
Python argument.

Inside the program a duration is an `int` of milliseconds and its attribute ends in `_ms`; outside it is
written `30s`, without the suffix. A size is an `int` of bytes; outside `4MiB` works as well.
"""

from typing import Annotated, Any, Literal

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


def _duration(help_text: str, low_ms: int, high_ms: int) -> Any:
    return Meta(ge=low_ms, le=high_ms, description=help_text, extra={"unit": "duration"})


def _size(help_text: str, low_bytes: int, high_bytes: int) -> Any:
    return Meta(ge=low_bytes, le=high_bytes, description=help_text, extra={"unit": "size"})


def _count(help_text: str, low: int, high: int) -> Any:
    return Meta(ge=low, le=high, description=help_text, extra={"unit": "count"})


def _plain(help_text: str) -> Any:
    return Meta(description=help_text, extra={"unit": "plain"})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One validated set of settings. Build it with `tickwheel_broker.config.load.load`, or directly in tests."""

    # -- listening ------------------------------------------------------------------------------------------
    listen_host: Annotated[
        str,
        _plain(
            "Address of the TCP listener. One that other machines can reach needs TLS, and tokens or tls_client_ca."
        ),
    ] = "127.0.0.1"
    listen_port: Annotated[
        int, _count("Port of the TCP listener. 0 lets the system choose a free one.", 0, 65_535)
    ] = 7411
    listen_tcp: Annotated[bool, _plain("Whether to listen on TCP at all.")] = True
    unix_socket: Annotated[
        str, _plain("Path of a Unix socket to listen on as well. Empty: none. At most 100 bytes.")
    ] = ""
    insecure: Annotated[
        bool,
        _plain(
            "Allow an address that other machines can reach without TLS, or without tokens and tls_client_ca: "
            "whoever reaches the port, or listens on the way, can then read and cancel everything."
        ),
    ] = False

    # -- security -------------------------------------------------------------------------------------------
    tls_certificate: Annotated[
        str,
        _plain("PEM file of the TLS certificate and its chain. Empty: no TLS on TCP. SIGHUP loads it anew."),
    ] = ""
    tls_key: Annotated[
        str, _plain("PEM file of its key, without password. Empty: it is in tls_certificate, too.")
    ] = ""
    tls_client_ca: Annotated[
        str,
        _plain(
            "PEM file of a CA. Only clients that show a certificate of it can connect over TCP. Empty: any client can."
        ),
    ] = ""

    tokens_file: Annotated[
        str,
        _plain(
            "File of the tokens that `tickwheel tokens` manages. Empty: tokens.json in the data directory, if it is "
            "there. As soon as there is a token, nobody gets in by TCP without one."
        ),
    ] = ""
    audit_log: Annotated[
        str,
        _plain(
            "File to which log-ins, refusals and changes of topics and tokens are appended, a JSON line each. SIGHUP "
            "opens it anew. Empty: they are in the ordinary log."
        ),
    ] = ""

    # -- storage --------------------------------------------------------------------------------------------
    data_dir: Annotated[
        str, _plain("Directory of the log and everything derived from it. Created if it is missing.")
    ] = "tickwheel-data"
    segment_bytes: Annotated[
        int, _size("Size of one log segment. Space is reserved a whole segment at a time.", MIB, 2 * GIB)
    ] = 64 * MIB

    disk_reserve_bytes: Annotated[
        int,
        _size(
            "How much disk space to keep, at most, for what accepted messages still need when the disk is full: "
            "about 200 bytes each, less in batches.",
            0,
            1024 * GIB,
        ),
    ] = 16 * MIB

    durability: Annotated[
        Literal["always", "interval", "os"],
        _plain(
            "When a send or ack is confirmed. `always`: when it is on the disk. `interval`: at once, synced each "
            "sync_interval; a power loss loses up to that much of what was confirmed. `os`: at once, synced when "
            "the system likes and on shutdown; a power loss loses everything since. None loses anything when "
            "only the broker is killed."
        ),
    ] = "always"
    sync_interval_ms: Annotated[int, _duration("How often `durability = interval` syncs.", 1, HOUR_MS)] = (
        1 * SECOND_MS
    )

    purge_after_ms: Annotated[
        int,
        _duration(
            "How long messages stay, and can be queried, after every group has acknowledged them. Then their disk "
            "space is given back, a segment at a time. Topics can have their own.",
            0,
            365 * DAY_MS,
        ),
    ] = DAY_MS

    # -- limits ---------------------------------------------------------------------------------------------
    max_body_bytes: Annotated[int, _size("The largest body of a message, at most 16MiB.", 0, 16 * MIB)] = (
        4 * MIB
    )
    max_frame_bytes: Annotated[
        int,
        _size("The largest frame that a client may send. Must hold one largest message.", 64 * KIB, 64 * MIB),
    ] = 20 * MIB
    max_connections: Annotated[
        int, _count("Connections at a time; one more is told `too_many_connections`.", 1, 100_000)
    ] = 1_000
    max_connections_per_address: Annotated[
        int,
        _count(
            "Connections from one IP address (IPv6: from one /64 network) at a time; one more is told "
            "`too_many_connections_from_address`. Unix sockets are not counted.",
            1,
            100_000,
        ),
    ] = 1_000
    max_topics: Annotated[int, _count("Topics in the data directory.", 1, 30_000)] = 10_000
    max_topics_per_token: Annotated[
        int,
        _count(
            "Topics that one token may make in its life, also those that were deleted since, unless it has the grant "
            "admin:*; 0: half of max_topics.",
            0,
            30_000,
        ),
    ] = 0
    max_groups: Annotated[int, _count("Consumer groups of all topics together.", 1, 30_000)] = 10_000
    max_subscriptions: Annotated[
        int, _count("Subscriptions of all connections together, and fetches that wait.", 1, 65_000)
    ] = 10_000
    auto_create_topics: Annotated[
        bool, _plain("Create a topic when it is first used. If false, only existing topics can be used.")
    ] = True
    auto_create_groups: Annotated[
        bool,
        _plain("Create a consumer group when it is first used. If false, only existing groups can be used."),
    ] = True
    max_backlog_messages: Annotated[
        int,
        _count(
            "Messages that may be accepted but not yet on the wheel. Beyond this, producers must wait.",
            1_000,
            100_000_000,
        ),
    ] = 500_000
    max_credit: Annotated[
        int, _count("Messages that one subscription may ask to hold un-acknowledged.", 1, MAX_CREDIT)
    ] = MAX_CREDIT
    max_receive_bytes: Annotated[
        int,
        _size(
            "Memory for frames larger than 512KiB while they arrive, of all connections together. Beyond it "
            "connections with such frames are not read from until others are done. At least max_frame_bytes.",
            MIB,
            1024 * GIB,
        ),
    ] = 256 * MIB
    write_high_water_bytes: Annotated[
        int, _size("Bytes queued for one connection before it gets no more deliveries.", 64 * KIB, GIB)
    ] = 4 * MIB

    # -- delivery -------------------------------------------------------------------------------------------
    ack_wait_ms: Annotated[
        int, _duration("A message not acknowledged for this long is delivered again.", 1, 365 * DAY_MS)
    ] = 30 * SECOND_MS
    min_backoff_ms: Annotated[
        int,
        _duration(
            "The n-th redelivery of a message waits min_backoff · 2^(n-1), but not less than ack_wait nor "
            "more than max_backoff. 0: the same as ack_wait.",
            0,
            DAY_MS,
        ),
    ] = 0
    max_backoff_ms: Annotated[
        int, _duration("The longest wait before a redelivery. Not below ack_wait.", 1, 365 * DAY_MS)
    ] = HOUR_MS

    delay_levels: Annotated[str, _plain("What delay_level 1, 2, … of a send mean, as in RocketMQ 4.")] = (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    check_after_ms: Annotated[
        int, _duration("A prepared message that nobody decided about is asked after this first.", 1, DAY_MS)
    ] = 6 * SECOND_MS
    check_interval_ms: Annotated[
        int, _duration("And then again this often; for topics of prepared messages that are new.", 1, DAY_MS)
    ] = 30 * SECOND_MS
    check_attempts: Annotated[
        int, _count("So many times; then it is moved to the dead letters of prepared messages.", 1, 1_000)
    ] = 15

    # -- time-outs ------------------------------------------------------------------------------------------
    handshake_timeout_ms: Annotated[
        int, _duration("A new connection must have said HELLO by then.", 10, HOUR_MS)
    ] = 10 * SECOND_MS
    frame_timeout_ms: Annotated[
        int,
        _duration(
            "A frame that was begun must have arrived whole by then, however steadily its bytes come.",
            10,
            DAY_MS,
        ),
    ] = 2 * MINUTE_MS
    idle_timeout_ms: Annotated[
        int, _duration("A connection that sends nothing (not even PING) is closed.", 100, 30 * DAY_MS)
    ] = 5 * MINUTE_MS
    send_timeout_ms: Annotated[
        int,
        _duration(
            "A client that does not read what it was sent (64KiB in this time, or all) is closed.",
            100,
            DAY_MS,
        ),
    ] = 30 * SECOND_MS
    drain_timeout_ms: Annotated[
        int, _duration("On shutdown, how long clients may finish and acknowledge.", 0, HOUR_MS)
    ] = 2 * SECOND_MS

    # -- cluster --------------------------------------------------------------------------------------------
    cluster: Annotated[
        str,
        _plain(
            "Address of a cluster, such as kafka://host:9092,host2:9092/name: the broker is a node of it, and its "
            "data directory a replica. Empty: a broker of its own. Needs pip install 'tickwheel[cluster]'."
        ),
    ] = ""
    node: Annotated[
        int,
        _count(
            "In a cluster: the number of this node, from 1. No two have the same, and each keeps its own.",
            0,
            65_535,
        ),
    ] = 0
    advertised_url: Annotated[
        str,
        _plain(
            "In a cluster: where clients reach this node, such as tickwheel://node1:7411; the other nodes tell it to "
            "clients that come to them. Empty: the address of its TCP listener."
        ),
    ] = ""
    cluster_timeout_ms: Annotated[
        int,
        _duration(
            "In a cluster: a node that Kafka has not heard of for so long is replaced. An owner that has not heard of "
            "Kafka for half of it serves no clients. Not below Kafka's group.min.session.timeout.ms, usually 6s.",
            1 * SECOND_MS,
            5 * MINUTE_MS,
        ),
    ] = 6 * SECOND_MS
    max_clock_skew_ms: Annotated[
        int,
        _duration(
            "In a cluster: a node whose clock differs by more from the owner's is not chosen to own the log.",
            10,
            HOUR_MS,
        ),
    ] = 250
    kafka_config: Annotated[
        str,
        _plain(
            "In a cluster: file of more settings of the Kafka client (librdkafka), name=value in each line, for TLS "
            "and passwords. Empty: none."
        ),
    ] = ""

    # -- monitoring -----------------------------------------------------------------------------------------
    http_listen: Annotated[
        bool,
        _plain(
            "Whether to answer /livez, /readyz and /metrics over HTTP; with TLS where tls_certificate is set. "
            "Needs pip install 'tickwheel[server]'."
        ),
    ] = False
    http_host: Annotated[
        str, _plain("Address of the HTTP listener; the rules for listen_host hold for it as well.")
    ] = "127.0.0.1"
    http_port: Annotated[
        int, _count("Port of the HTTP listener. 0 lets the system choose a free one.", 0, 65_535)
    ] = 7412
    metrics_topics: Annotated[
        int,
        _count(
            "At most so many topics, the oldest ones, and so many of their groups have metrics of their own; those "
            "of all others are added up as `other`.",
            0,
            1_000,
        ),
    ] = 100

    # -- HTTP API -------------------------------------------------------------------------------------------
    web: Annotated[
        bool,
        _plain(
            "Whether to start `tickwheel web` beside the broker, and anew when it ends. It reaches the broker by "
            "unix_socket, or web.sock in the data directory. Needs pip install 'tickwheel[web]'."
        ),
    ] = False
    web_host: Annotated[
        str,
        _plain(
            "Address on which the HTTP API listens, with TLS where tls_certificate is set; the rules for listen_host "
            "hold for it as well. Empty: not on TCP."
        ),
    ] = "127.0.0.1"
    web_port: Annotated[
        int, _count("Port of the HTTP API. 0 lets the system choose a free one.", 0, 65_535)
    ] = 7413
    web_unix_socket: Annotated[
        str,
        _plain(
            "Path of a Unix socket on which the HTTP API listens as well, without TLS, for a proxy of the same group. "
            "Empty: none."
        ),
    ] = ""
    web_max_connections: Annotated[int, _count("Connections to the HTTP API at a time.", 1, 100_000)] = 1_024
    web_max_polls: Annotated[
        int, _count("Requests that wait for messages over HTTP, of one token at a time.", 1, 100_000)
    ] = 32
    web_max_streams: Annotated[
        int, _count("Streams of messages over HTTP, of all tokens at a time.", 1, 100_000)
    ] = 64
    web_max_request_bytes: Annotated[
        int,
        _size("The largest body of a request to the HTTP API. As base64 a body is a third longer.", KIB, GIB),
    ] = 8 * MIB
    web_max_header_bytes: Annotated[
        int, _size("The largest head of a request to the HTTP API.", KIB, MIB)
    ] = 16 * KIB
    web_request_timeout_ms: Annotated[
        int,
        _duration(
            "The head of a request to the HTTP API must have arrived by then, and so its body.", 100, HOUR_MS
        ),
    ] = 30 * SECOND_MS
    web_cors_origins: Annotated[
        str,
        _plain(
            "Origins whose pages browsers let use the HTTP API, such as https://shop.example, with spaces between "
            "them. Empty: none."
        ),
    ] = ""
    web_forwarded_from: Annotated[
        str,
        _plain(
            "Proxies whose X-Forwarded-For the HTTP API believes: addresses, networks such as 10.0.0.0/8, and `unix` "
            "for the Unix socket, with spaces between them. Empty: none."
        ),
    ] = ""

    web_hosts: Annotated[
        str,
        _plain(
            "Names of this server, such as broker.example, with spaces between them; `*`: any. localhost, web_host and "
            "all addresses are known without it. Under others there are no pages of the dashboard, and no HTTP API of "
            "a broker that wants no token: a page of another site may have led a browser here by such a name."
        ),
    ] = ""
    web_read_only: Annotated[
        bool, _plain("Whether pages and HTTP API refuse all that is no GET, and pages show no buttons.")
    ] = False
    web_hide_bodies: Annotated[bool, _plain("Whether pages leave out the bodies of messages.")] = False
    web_hide_headers: Annotated[
        str,
        _plain("Headers of messages that pages leave out, with spaces between their names. Empty: none."),
    ] = ""
    web_lateness_threshold_ms: Annotated[
        int, _duration("What is later than that the page about lateness shows as late.", 1, DAY_MS)
    ] = SECOND_MS
    web_trusted_header: Annotated[
        str,
        _plain(
            "Header in which an authenticating proxy writes who looks at the dashboard, such as X-Forwarded-User. It "
            "must replace what clients send. Empty: none is believed."
        ),
    ] = ""
    web_trusted_from: Annotated[
        str,
        _plain(
            "Of whom that header is believed: addresses and networks of the proxy, and `unix`, with spaces between "
            "them. X-Forwarded-For does not count here."
        ),
    ] = ""
    web_trusted_users: Annotated[
        str,
        _plain(
            "Path of a file with a name and a token on each line, for those whom the proxy has let in. Other users of "
            "the machine may not read it; it is read again when it has changed."
        ),
    ] = ""

    # -- push: of `tickwheel push` alone ------------------------------------------------------------------
    push_allow_network: Annotated[
        str,
        _plain(
            "Networks whose addresses `tickwheel push` calls as well, such as 10.0.0.0/8, with spaces between them. "
            "Empty: public addresses only."
        ),
    ] = ""
    push_allow_http: Annotated[bool, _plain("Whether `tickwheel push` also calls URLs without TLS.")] = False
    push_port: Annotated[
        str, _plain("The ports that `tickwheel push` may call, with spaces between them.")
    ] = "443 80"
    push_endpoint_ca: Annotated[
        str,
        _plain(
            "File with the CA of endpoints' certificates, besides those that the system knows. Empty: none."
        ),
    ] = ""
    push_metrics: Annotated[
        str,
        _plain(
            "Where `tickwheel push` answers /metrics, /livez and /readyz, such as 127.0.0.1:7414. Empty: nowhere."
        ),
    ] = ""
    push_drain_ms: Annotated[
        int,
        _duration("So long `tickwheel push` waits for answers at its end; the rest goes back.", 0, HOUR_MS),
    ] = 30 * SECOND_MS
    push_refresh_ms: Annotated[
        int, _duration("So often `tickwheel push` looks for changed endpoints.", 50, HOUR_MS)
    ] = SECOND_MS

    # -- RocketMQ -------------------------------------------------------------------------------------------
    rocketmq: Annotated[
        bool,
        _plain(
            "Whether to start `tickwheel gateway` beside the broker, and anew when it ends. It reaches the broker by "
            "unix_socket, or rocketmq.sock in the data directory. Needs pip install 'tickwheel[rocketmq]'."
        ),
    ] = False
    rocketmq_listen: Annotated[
        str,
        _plain(
            "Where clients of RocketMQ 5 reach the gateway, such as 0.0.0.0:8081; with TLS and plain text on one port "
            "where tls_certificate is set. One that other machines can reach needs that and rocketmq_credentials_file, "
            "and takes no plain text."
        ),
    ] = "127.0.0.1:8081"
    rocketmq_advertise: Annotated[
        str,
        _plain(
            "Address that clients of RocketMQ are told, such as broker.example:8081. Empty: the one by which each has "
            "come."
        ),
    ] = ""
    rocketmq_credentials_file: Annotated[
        str,
        _plain(
            "File with an access key, a secret key and a token on each line, as `tickwheel gateway credentials add` "
            "writes it. Other users of the machine may not read it; it is read again when it has changed. Empty: who "
            "reaches the gateway may do all that the gateway may."
        ),
    ] = ""
    rocketmq_metrics: Annotated[
        str,
        _plain(
            "Where `tickwheel gateway` answers /metrics, /livez and /readyz, such as 127.0.0.1:7415. Empty: nowhere."
        ),
    ] = ""
    rocketmq_workers: Annotated[
        int,
        _count(
            "Processes of the gateway on the one port. Each can use a core, and has its own connections to the broker, "
            "its own clients, and its own limits.",
            1,
            64,
        ),
    ] = 1
    rocketmq_niceness: Annotated[
        int,
        _count(
            "How far the gateway stands back for others, above all the broker, where all want the processor: what is "
            "due comes in time beside a gateway that has all the work it can do. As of `nice`; 0: not at all.",
            0,
            19,
        ),
    ] = 5
    rocketmq_queues: Annotated[
        int,
        _count(
            "Queues that each topic seems to have, and receives of each push consumer that are open at a time. With 1, "
            "a push consumer has two more open while it is busy, which is enough for most: the broker balances "
            "itself. Each receive that waits costs memory and time of the processor.",
            1,
            64,
        ),
    ] = 1
    rocketmq_receive_batch_size: Annotated[
        int, _count("Messages that a push consumer of RocketMQ receives at a time, at most.", 1, 1_000)
    ] = 128
    rocketmq_long_polling_max_ms: Annotated[
        int, _duration("The longest that a receive of RocketMQ waits for messages.", 1_000, HOUR_MS)
    ] = 20 * SECOND_MS
    rocketmq_invisible_min_ms: Annotated[
        int, _duration("The shortest time for which a simple consumer may take messages.", 1, DAY_MS)
    ] = 10 * SECOND_MS
    rocketmq_invisible_max_ms: Annotated[
        int, _duration("The longest time for which a simple consumer may take messages.", 1, 365 * DAY_MS)
    ] = 12 * HOUR_MS
    rocketmq_renew_lease_ms: Annotated[
        int,
        _duration(
            "How long a lease of a push consumer's message is; the gateway renews it while the consumer is there. So "
            "long after a gateway is lost its messages come again.",
            15_000,
            DAY_MS,
        ),
    ] = MINUTE_MS
    rocketmq_renew_max_ms: Annotated[
        int,
        _duration(
            "How long a push consumer's message is renewed, from its delivery on.", 15_000, 365 * DAY_MS
        ),
    ] = 3 * HOUR_MS
    rocketmq_max_attempts: Annotated[
        int,
        _count("How often a message is given to a group of RocketMQ; then it is in its %DLQ%.", 1, 10_000),
    ] = 17
    rocketmq_retry_delays: Annotated[
        str,
        _plain("How long a push consumer's message waits before its second attempt, its third, and so on."),
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    rocketmq_groups: Annotated[
        str,
        _plain(
            "Groups of RocketMQ with attempts, and perhaps delays, of their own, with spaces between them, such as "
            "billing=3 mails=5:10s,1m,10m."
        ),
    ] = ""
    rocketmq_fifo_groups: Annotated[
        str,
        _plain(
            "Groups of RocketMQ that are orderly, as names or patterns such as *-fifo, with spaces between them. Push "
            "consumers of others do not ask for order."
        ),
    ] = ""
    rocketmq_priority_topics: Annotated[
        str,
        _plain(
            "Topics of which clients of RocketMQ are told that they take priorities, as names or patterns, with spaces "
            "between them. Java and C# are told from 5.2.0 on: older ones do not start then."
        ),
    ] = ""
    rocketmq_max_delay_ms: Annotated[
        int,
        _duration(
            "How far ahead clients of RocketMQ may send. 0: as far as they like.",
            0,
            36_500 * DAY_MS,
        ),
    ] = 0
    rocketmq_max_connections: Annotated[
        int, _count("Connections to the gateway at a time, to each of its workers.", 1, 100_000)
    ] = 10_000
    rocketmq_max_streams: Annotated[
        int, _count("Calls at a time on one connection to the gateway.", 100, 100_000)
    ] = 4_096
    rocketmq_max_pending_bytes: Annotated[
        int,
        _size(
            "Requests in work on one connection to the gateway. Beyond it, it is not read from. At least "
            "max_frame_bytes.",
            MIB,
            GIB,
        ),
    ] = 32 * MIB

    # -- Arrow Flight ---------------------------------------------------------------------------------------
    flight: Annotated[
        bool,
        _plain(
            "Whether to start `tickwheel flight` beside the broker, and anew when it ends. It reaches the broker by "
            "unix_socket, or flight.sock in the data directory. Needs pip install 'tickwheel[flight]'."
        ),
    ] = False
    flight_listen: Annotated[
        str,
        _plain(
            "Where Spark, DuckDB and others read tables by Arrow Flight, such as 0.0.0.0:7416; with TLS where "
            "tls_certificate is set. The rules for listen_host hold for it as well."
        ),
    ] = "127.0.0.1:7416"
    flight_advertise: Annotated[
        str,
        _plain(
            "Address of Arrow Flight that clients of the broker are told, such as broker.example:7416, or "
            "grpc+tls://broker.example:443 where TLS ends before the broker. Empty: the host by which they reach the "
            "broker, with the port of flight_listen. To be set where `tickwheel flight` is not started by the broker."
        ),
    ] = ""
    flight_streams: Annotated[
        int,
        _count(
            "Batches of rows that are made for readers at the same time; others wait for their turn. 0: four for each "
            "core.",
            0,
            1_000,
        ),
    ] = 0
    flight_niceness: Annotated[
        int,
        _count(
            "How far reading by Arrow Flight stands back for others, above all the broker, where all want the "
            "processor. As of `nice`; 0: not at all; 20: it gets what nobody else wants (SCHED_IDLE).",
            0,
            20,
        ),
    ] = 5
    max_staging_bytes: Annotated[
        int,
        _size(
            "Files of bulk jobs that came by Arrow Flight and are not taken in yet, of all jobs together. Beyond it, "
            "no more of them is taken.",
            MIB,
            1024 * GIB,
        ),
    ] = 64 * GIB

    # -- logging --------------------------------------------------------------------------------------------
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _plain("The least level logged.")] = (
        "info"
    )
    log_format: Annotated[
        Literal["auto", "console", "json"],
        _plain("`auto` writes readable lines to a terminal and JSON otherwise."),
    ] = "auto"
