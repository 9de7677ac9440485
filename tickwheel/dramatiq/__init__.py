"""A broker for Dramatiq: delayed messages wait in Tickwheel, not in a worker's memory (docs/how-to/dramatiq.md).

>>> import dramatiq
>>> from tickwheel.dramatiq import TickwheelBroker
>>> dramatiq.set_broker(TickwheelBroker("tickwheel://127.0.0.1:7411"))

Needs ``pip install 'tickwheel[dramatiq]'``.
"""

from __future__ import annotations

from tickwheel.errors import DramatiqMissing

try:
    from tickwheel.dramatiq.broker import TickwheelBroker
    from tickwheel.dramatiq.retries import BrokerRetries
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "dramatiq":
        raise
    raise DramatiqMissing from error

__all__ = ["BrokerRetries", "TickwheelBroker"]
