"""``broker_transport_options``: what they may be, and where the broker is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from tickwheel.client.url import default_url
from tickwheel.protocol.errors import ConfigError
from tickwheel.protocol.limits import DEFAULT_PORT

CLIENT_OPTIONS: Final = (
    "ca_file",
    "certificate",
    "key",
    "keepalive",
    "plain_token",
    "timeout",
    "token",
    "token_file",
    "tracing",
)
"""What goes to the client as it is."""

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "eta": ("broker", "worker"),
    "publish": ("confirmed", "pipelined"),
}
_OWN: Final = ("eta", "publish", "reconnect_timeout", "timezone", "transient_expires", "visibility_timeout")
_SSL: Final = {"ca_certs": "ca_file", "certfile": "certificate", "keyfile": "key"}
"""Of ``broker_use_ssl``, as other transports have it."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Times are seconds."""

    eta: Literal["broker", "worker"] = "broker"
    """Who holds tasks that wait for their time."""
    publish: Literal["confirmed", "pipelined"] = "confirmed"
    """Whether each message is waited for until it is on the broker's disk."""
    timezone: tzinfo | None = None
    """Of ETAs without a zone; None: the app's."""
    visibility_timeout: float | None = None
    """How long a message is leased, where nothing can renew leases; None: as the topic says, and renewed."""
    reconnect_timeout: float = 10.0
    """How long a lost connection is renewed here before Kombu is told."""
    transient_expires: float = 60.0
    """How long a queue that is deleted with its last consumer outlives a consumer that was killed."""
    client: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """For ``tickwheel.sync.Client``."""


def options_of(given: Mapping[str, Any], ssl: Any = None) -> Options:
    """From ``transport_options`` and ``ssl`` of a Kombu connection; names that others use are left alone. Raises
    ConfigError."""
    own = {name: given[name] for name in _OWN if given.get(name) is not None}
    for name, choices in _CHOICES.items():
        if name in own and own[name] not in choices:
            raise ConfigError(
                f"The transport option {name} is {own[name]!r}.", advice=f"Use {' or '.join(choices)}."
            )
    for name in ("visibility_timeout", "reconnect_timeout", "transient_expires"):
        if name in own:
            own[name] = _seconds(own[name], name)
    if "timezone" in own:
        own["timezone"] = _zone(own["timezone"])
    client = {name: given[name] for name in CLIENT_OPTIONS if given.get(name) is not None}
    if isinstance(ssl, Mapping):
        client.update({ours: ssl[theirs] for theirs, ours in _SSL.items() if ssl.get(theirs)})
    return Options(client=client, **own)


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ConfigError(f"The transport option {name} is {value!r}.", advice="Use seconds, more than 0.")
    return float(value)


def _zone(name: Any) -> tzinfo:
    if isinstance(name, tzinfo):
        return name
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise ConfigError(
            f"The transport option timezone is {name!r}, which is no time zone.",
            advice="Use one such as Europe/Paris.",
        ) from None


def url_of(connection: Any) -> str:
    """The broker's URL, from what Kombu has made of it. Raises ConfigError."""
    hostname: str = connection.hostname or ""
    if hostname.startswith("unix://"):  # Kombu has cut it at the plus sign
        return f"tickwheel+{hostname}"
    if connection.password or connection.userid:
        raise ConfigError(
            "The address of a broker has no user and no password.",
            advice="Give a token as broker_transport_options={'token': …}, or TICKWHEEL_TOKEN.",
        )
    if (connection.virtual_host or "/").strip("/"):
        raise ConfigError(
            f"The address of the broker has a path, {connection.virtual_host!r}, and Tickwheel no virtual hosts.",
            advice="Use tickwheel://HOST:PORT; several apps use queues with different names.",
        )
    scheme = "tickwheels" if connection.ssl or connection.transport_cls == "tickwheels" else "tickwheel"
    if not hostname and not connection.port and "TICKWHEEL_URL" in os.environ:
        return default_url()
    host = f"[{hostname}]" if ":" in hostname else hostname or "127.0.0.1"
    return f"{scheme}://{host}:{connection.port or DEFAULT_PORT}"
