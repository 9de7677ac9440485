"""Retries without copies: what failed is given back to the broker, which counts its attempts.

Dramatiq's own `Retries` sends a copy of the message for each retry, and acks the first one. It knows nothing of workers
that died: a message that kills its worker comes again without an end. Here each delivery is an attempt.
"""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.middleware import Retries

from tickwheel.dramatiq.consumer import DeliveredMessage


class BrokerRetries(Retries):
    """Takes the place of ``Retries``, with the same arguments and actor options.

    The message keeps its id and its place in the broker's history, and an attempt that its worker did not survive
    counts against ``max_retries``. Messages of other brokers are retried as ``Retries`` does it.
    """

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        """See ``Middleware``: refuses what has killed too many workers."""
        if not isinstance(message, DeliveredMessage):
            return
        retries = message.attempt - 1
        if retries:
            message.options["retries"] = max(retries, message.options.get("retries", 0))
        actor = broker.actors.get(message.actor_name)
        of_actor = {} if actor is None else actor.options
        most = message.options.get("max_retries", of_actor.get("max_retries", self.max_retries))
        decides = of_actor.get("retry_when", self.retry_when)
        if decides is None and most is not None and retries > most:
            # It did not come to an end, and so to no decision, in any of its attempts.
            self.logger.warning("Message %r has ended %d workers.", message.message_id, retries)
            message.stuff_exception(RuntimeError(f"{retries} attempts ended without an answer"))
            message.fail()

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """See ``Middleware``."""
        if message.failed:  # before it was begun
            return
        seen: Any = _GivingBack(broker, message) if isinstance(message, DeliveredMessage) else broker
        super().after_process_message(  # type: ignore[no-untyped-call]
            seen, message, result=result, exception=exception
        )


class _GivingBack:
    """A broker, for ``Retries``: a message that it enqueues once more is given back."""

    def __init__(self, broker: dramatiq.Broker, message: DeliveredMessage) -> None:
        self._broker = broker
        self._message = message

    def enqueue(self, message: dramatiq.MessageProxy, *, delay: int | None = None) -> dramatiq.MessageProxy:
        """See ``Broker.enqueue``."""
        told = message.options.get("traceback", "").strip().rpartition("\n")[2]
        self._message.give_back(delay or 0, told)
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)
