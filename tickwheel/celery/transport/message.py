"""A message as Kombu hands it to a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.transport import base


class Check(NamedTuple):
    """Finds what is wrong with messages, in a worker of Celery; it answers in words, or nothing."""

    of_message: Callable[[Mapping[str, Any]], str]
    """As ``envelope.decode`` has it."""
    of_payload: Callable[[Mapping[str, Any], Any], str]
    """Its headers, and its body as it was decoded."""


CHECKS: Final[list[Check]] = []
"""Without one, as in programs that use Kombu alone, messages may be anything."""


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
        self.fault: str = raw["fault"]
        """Why it cannot be worked on. What has one is never acked: where Celery would, it becomes a dead letter."""
        if self.errors:
            self._blame(f"its body cannot be decompressed: {self.errors[0][1]}")

    def _blame(self, fault: str) -> None:
        if CHECKS:
            self.fault = self.fault or fault

    def _decode(self) -> Any:
        try:
            payload = super()._decode()
        except ContentDisallowed as error:
            self._blame(str(error))
            raise
        except Exception as error:
            self._blame(f"its body cannot be decoded: {error}")
            if not CHECKS or isinstance(error, DecodeError):
                raise
            raise DecodeError(str(error)) from error
        for check in CHECKS:
            if fault := check.of_payload(self.headers, payload):
                self._blame(fault)
                raise DecodeError(fault)
        return payload

    @property
    def is_ours(self) -> bool:
        """Whether it is un-acked and leased to this process: then no other has it. May ask the broker."""
        return self.channel is not None and self.channel.still_has(self.delivery_tag)

    def ack(self, multiple: bool = False) -> None:
        """See ``kombu.Message``."""
        if CHECKS and self.fault and not multiple:
            self.reject()
        else:
            super().ack(multiple=multiple)

    def reject(self, requeue: bool = False) -> None:
        """See ``kombu.Message``."""
        if requeue and self.requeue_delay_ms and self.channel is not None and not self.acknowledged:
            self.channel.requeue_later(self.delivery_tag, self.requeue_delay_ms)
            self._state = "REQUEUED"
        elif self.fault and not requeue and self.channel is not None and not self.acknowledged:
            self.channel.give_up(self.delivery_tag, self.fault)
            self._state = "REJECTED"
        else:
            super().reject(requeue=requeue)
