"""Messages that were fetched, as they are shown to clients of RocketMQ."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from tickwheel import Message, MessageInfo, RemoteProtocolError
from tickwheel_gateway.wire.messages import Given, Held, received
from tickwheel_gateway.wire.properties import SHARDING_KEY

_KEYS: Final = "KEYS"
_TAGS: Final = "TAGS"
_UNIQ_KEY: Final = "UNIQ_KEY"

_log = logging.getLogger("tickwheel.gateway.delivery")


def held_of(message: Message | MessageInfo) -> Held:
    """The message. Headers that another program wrote wrongly are left out, or it could never be delivered."""
    try:
        headers: Mapping[str, Any] = message.headers
    except RemoteProtocolError as error:
        _log.warning("message %d is delivered without its headers: %s", message.id, error.message)
        headers = {}
    return Held(
        id=message.id,
        key=message.key or None,
        body=message.body,
        headers=headers,
        deliver_at_ms=message.deliver_at_ms,
        created_ms=message.created_ms,
        order_key=message.order_key or None,
    )


def shown(held: Held, given: Given) -> Any:
    """A Message of RocketMQ. What its protocol has no way to say is left out."""
    try:
        return received(held, given)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        _log.warning("message %d is delivered without its headers: %s", held.id, error)
        return received(held._replace(headers={}, key=None, order_key=None), given)


def properties_of(message: Any) -> dict[str, str]:
    """What an expression may name: the user's properties, and those that RocketMQ adds."""
    system = message.system_properties
    found = dict(message.user_properties)
    if system.keys:
        found[_KEYS] = " ".join(system.keys)
    if system.HasField("tag"):
        found[_TAGS] = system.tag
    if system.HasField("message_group"):
        found[SHARDING_KEY] = system.message_group
    found[_UNIQ_KEY] = system.message_id
    return found
