"""A message as Kombu hands it to a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.transport import base


class Message(base.Message):  # type: ignore[misc]
    """See ``kombu.Message``. ``delivery_tag`` names group, id and epoch of the delivery."""

    requeue_delay_ms = 0
    """When a program that rejects it with ``requeue`` is given it again; 0: at once."""

    def __init__(self, raw: Mapping[str, Any], channel: Any, delivery_tag: str) -> None:
        properties = raw["properties"]
        super().__init__(
            body=raw["body"],
            channel=channel,
            delivery_tag=delivery_tag,
            content_type=raw.get("content-type"),
            content_encoding=raw.get("content-encoding"),
            headers=raw["headers"],
            properties=properties,
            delivery_info=properties["delivery_info"],
            postencode="utf-8",
        )

    def reject(self, requeue: bool = False) -> None:
        """See ``kombu.Message``."""
        if requeue and self.requeue_delay_ms and self.channel is not None and not self.acknowledged:
            self.channel.requeue_later(self.delivery_tag, self.requeue_delay_ms)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)
