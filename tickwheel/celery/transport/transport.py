"""What Kombu makes for a URL ``tickwheel://…``."""

from __future__ import annotations

import logging
from typing import Any

import kombu.exceptions
from kombu.transport import base

from tickwheel.celery.transport.channel import Channel
from tickwheel.celery.transport.connection import Connection
from tickwheel.celery.transport.options import options_of, url_of
from tickwheel.protocol.errors import (
    BadHandshake,
    ClientClosed,
    NotConnected,
    RequestTimeout,
    RequestUncertain,
    SendUncertain,
    ShuttingDown,
    TooManyConnections,
    UnknownGroup,
    UnknownTopic,
)

logger = logging.getLogger("tickwheel.celery")


class Management(base.Management):  # type: ignore[misc]
    """What tools ask of a broker."""

    def get_bindings(self) -> list[dict[str, str]]:
        """Those that this connection knows."""
        with self.transport.client.channel() as channel:
            return [
                {"destination": queue, "source": exchange, "routing_key": key}
                for queue, exchange, key in channel.list_bindings()
            ]


class Transport(base.Transport):  # type: ignore[misc]
    """See the module."""

    Management = Management
    default_port = 7411
    driver_type = "tickwheel"
    driver_name = "tickwheel"
    recoverable_connection_errors = (
        NotConnected,
        ClientClosed,
        RequestTimeout,
        RequestUncertain,
        SendUncertain,
        ShuttingDown,
        TooManyConnections,
        BadHandshake,
        OSError,
    )
    connection_errors = (*recoverable_connection_errors, kombu.exceptions.ConnectionError)
    recoverable_channel_errors = (UnknownTopic, UnknownGroup)
    channel_errors = (*recoverable_channel_errors, kombu.exceptions.ChannelError)
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def driver_version(self) -> str:
        """Tickwheel's."""
        from importlib.metadata import version

        return version("tickwheel")

    def establish_connection(self) -> Connection:
        """Connects. Raises NotConnected and other errors of a client that connects."""
        client = self.client
        return Connection(client, url_of(client), options_of(client.transport_options, client.ssl))

    def close_connection(self, connection: Connection) -> None:
        """Closes it, and deletes the queues that end with it."""
        try:
            if connection.own_queues.names and connection.is_usable:
                with Channel(connection) as channel:
                    for queue in sorted(connection.own_queues.names):
                        channel.queue_delete(queue, if_unused=True)
        except self.recoverable_connection_errors as error:
            logger.debug("queues were not deleted, they end by themselves: %s", error)
        finally:
            connection.close()

    def create_channel(self, connection: Connection) -> Channel:
        """Another channel."""
        return Channel(connection)

    def close_channel(self, channel: Channel) -> None:
        """Closes it."""
        channel.close()

    def drain_events(self, connection: Connection, timeout: float | None = None, **_: Any) -> None:
        """See ``kombu.Connection.drain_events``. Raises ``socket.timeout``, NotConnected."""
        connection.drain_events(timeout)

    def verify_connection(self, connection: Connection) -> bool:
        """Whether it may still be used."""
        return connection.is_usable

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        """From now on the hub delivers."""
        connection.attach(loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        """The end of that."""
        connection.detach(loop)

    def _collect(self, connection: Connection | None) -> None:
        """Kombu asks for it in a child process, where what is open is the parent's, and before it connects again."""
        if connection is not None:
            connection.forget()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """See ``kombu.transport.base.Transport``."""
        return {"hostname": "localhost", "port": self.default_port}
