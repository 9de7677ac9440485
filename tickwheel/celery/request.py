"""What a worker does with a task that its broker has something to say about.

One whose retry could not be sent, because the broker's disk is full, Celery rejects for good. But it is still at the
broker, if it is acked late: so it is given back, and comes again when there may be room. No result is stored meanwhile,
because the task has not failed.

One whose lease has ended before it was begun, because the worker stood still, another worker may have: it is not begun.
"""

from __future__ import annotations

from typing import Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Reject
from celery.utils.log import get_logger
from celery.worker.request import Request as CeleryRequest
from celery.worker.state import task_ready

from tickwheel.celery.transport.message import Message
from tickwheel.protocol.errors import DiskFull

CELERYS: Final = "celery.worker.request:Request"
REQUEST: Final = "tickwheel.celery.request:Request"
"""For ``Task.Request``, instead of Celery's."""

_DELAY_MS: Final = 10_000

logger = get_logger(__name__)


class Request(CeleryRequest):  # type: ignore[misc]
    """See the module."""

    def revoked(self) -> bool:
        """See Celery's, which asks before it hands a task to its pool."""
        if super().revoked():
            return True
        if self.acknowledged or not isinstance(self.message, Message) or self.message.is_ours:
            return False
        logger.warning(
            "Task %s[%s] is not begun: its lease ended before that, and it is delivered again",
            self.name,
            self.id,
        )
        task_ready(self)
        return True

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """See Celery's."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if (
            isinstance(error, Reject)
            and isinstance(error.reason, DiskFull)
            and isinstance(self.message, Message)
            and not self.acknowledged
        ):
            logger.warning(
                "Task %s[%s] comes again in %d s: %s", self.name, self.id, _DELAY_MS // 1_000, error
            )
            task_ready(self)
            self.message.requeue_delay_ms = _DELAY_MS
            return self.reject(requeue=True)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
