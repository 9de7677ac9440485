"""The relay's log: events with fields, in the standard ``logging`` module under ``tickwheel.outbox``."""

from __future__ import annotations

import logging
from typing import Final, cast

import structlog

log: Final = cast(
    "structlog.stdlib.BoundLogger",
    structlog.wrap_logger(
        logging.getLogger("tickwheel.outbox"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    ),
)
