"""A message as Kombu hands it to a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.transport import base


class Message(base.Message):  # type: ignore[misc]
    """See ``kombu.Message``. ``delivery_tag`` names group, id and epoch of the delivery."""

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
