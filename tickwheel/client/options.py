"""The options of a client, and the settings of a broker in this process: by name and type, for what hands them on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from tickwheel.client.times import Delay, Moment

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from tickwheel.client.session import Dial


class ClientOptions(TypedDict, total=False):
    """Those of ``tickwheel.Client``, which says what they mean."""

    name: str | None
    timeout: float
    connect_timeout: float
    keepalive: float | None
    max_pending_bytes: int
    auto_key: bool
    ca_file: str | os.PathLike[str] | None
    certificate: str | os.PathLike[str] | None
    key: str | os.PathLike[str] | None
    token: str | None
    token_file: str | os.PathLike[str] | None
    plain_token: bool
    peer: str
    tracing: bool | TracerProvider
    dial: Dial | None


class SendTime(TypedDict, total=False):
    """When a message of ``Client.send`` is delivered, and before which others."""

    deliver_at: Moment | None
    delay: Delay | None
    delay_ms: int | None
    delay_level: int | None
    priority: int | None


class SendOptions(SendTime, total=False):
    """Those of ``Client.send`` beside topic, body and headers."""

    key: str | None
    order_key: str | None


class TopicSettings(TypedDict, total=False):
    """Those of ``create_topic`` and ``set_topic``, which says what they mean."""

    ack_wait: Delay
    ack_wait_ms: int
    min_backoff: Delay
    min_backoff_ms: int
    max_backoff: Delay
    max_backoff_ms: int
    purge_after: Delay
    purge_after_ms: int
    retention: Delay
    retention_ms: int
    spread: Delay
    spread_ms: int
    max_attempts: int
    batch_size: int
    cache_size: int
    priority: int
    rate: float
    max_body_bytes: int


Overlap: TypeAlias = Literal["allow", "skip"]
CatchUp: TypeAlias = Literal["none", "last", "all"]
EndpointFormat: TypeAlias = Literal["binary", "structured", "plain"]


class BrokerSettings(TypedDict, total=False):
    """Those of the configuration file, for a broker inside of this process; ``docs/tickwheel.example.toml`` says what
    they mean. Durations are texts with their unit, ``"30s"``; sizes are bytes, or ``"4MiB"``."""

    listen_host: str
    listen_port: int
    listen_tcp: bool
    unix_socket: str | os.PathLike[str]
    insecure: bool
    tls_certificate: str | os.PathLike[str]
    tls_key: str | os.PathLike[str]
    tls_client_ca: str | os.PathLike[str]
    tokens_file: str | os.PathLike[str]
    audit_log: str | os.PathLike[str]
    segment_bytes: int | str
    disk_reserve_bytes: int | str
    durability: Literal["always", "interval", "os"]
    sync_interval: str
    purge_after: str
    max_body_bytes: int | str
    max_frame_bytes: int | str
    max_connections: int
    max_connections_per_address: int
    max_topics: int
    max_topics_per_token: int
    max_groups: int
    max_subscriptions: int
    auto_create_topics: bool
    auto_create_groups: bool
    max_backlog_messages: int
    max_credit: int
    max_receive_bytes: int | str
    write_high_water_bytes: int | str
    ack_wait: str
    min_backoff: str
    max_backoff: str
    delay_levels: str
    check_after: str
    check_interval: str
    check_attempts: int
    handshake_timeout: str
    frame_timeout: str
    idle_timeout: str
    send_timeout: str
    drain_timeout: str
    http_listen: bool
    http_host: str
    http_port: int
    metrics_topics: int
    web: bool
    web_host: str
    web_port: int
    web_unix_socket: str | os.PathLike[str]
    web_max_connections: int
    web_max_polls: int
    web_max_streams: int
    web_max_request_bytes: int | str
    web_max_header_bytes: int | str
    web_request_timeout: str
    web_cors_origins: str
    web_forwarded_from: str
    web_hosts: str
    web_read_only: bool
    web_hide_bodies: bool
    web_hide_headers: str
    web_lateness_threshold: str
    web_trusted_header: str
    web_trusted_from: str
    web_trusted_users: str | os.PathLike[str]
    rocketmq: bool
    rocketmq_listen: str
    rocketmq_advertise: str
    rocketmq_credentials_file: str | os.PathLike[str]
    rocketmq_metrics: str
    rocketmq_workers: int
    rocketmq_niceness: int
    rocketmq_queues: int
    rocketmq_receive_batch_size: int
    rocketmq_long_polling_max: str
    rocketmq_invisible_min: str
    rocketmq_invisible_max: str
    rocketmq_renew_lease: str
    rocketmq_renew_max: str
    rocketmq_max_attempts: int
    rocketmq_retry_delays: str
    rocketmq_groups: str
    rocketmq_fifo_groups: str
    rocketmq_priority_topics: str
    rocketmq_max_delay: str
    rocketmq_max_connections: int
    rocketmq_max_streams: int
    rocketmq_max_pending_bytes: int | str
    flight: bool
    flight_listen: str
    flight_advertise: str
    flight_streams: int
    flight_niceness: int
    max_staging_bytes: int | str
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "console", "json"]
