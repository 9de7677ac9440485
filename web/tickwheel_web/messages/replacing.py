"""Another message in the place of one that is not delivered yet."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tickwheel import Client, MessageInfo
from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel_web.problems import Refused


async def replace(
    client: Client,
    found: MessageInfo,
    body: bytes,
    headers: dict[str, Any],
    *,
    deliver_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: int | None = None,
) -> int:
    """The id of the new one, which has the key, and the time and priority where none are given: both happen, or none.
    Raises Refused, TransactionRefused."""
    if found.topic.endswith(PREPARED_SUFFIX):
        raise Refused(
            409,
            "message_is_prepared",
            "A prepared message cannot get another body or other headers. Abort it, and prepare another one. "
            "Nothing was changed.",
        )
    if deliver_at is None and delay is None:
        deliver_at = found.deliver_at
    transaction = client.transaction()
    transaction.cancel(id=found.id)
    transaction.send(
        found.topic.partition("/")[0],
        body,
        headers=headers or None,
        key=found.key or None,
        order_key=found.order_key or None,
        deliver_at=deliver_at,
        delay=delay,
        priority=found.priority if priority is None else priority,
    )
    result = await transaction.commit()
    assert result is not None
    return result.ids[0][0]
