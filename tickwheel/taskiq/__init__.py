"""A broker and a source of schedules for Taskiq: what is for later waits in Tickwheel (docs/how-to/taskiq.md).

>>> from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource
>>> broker = TickwheelBroker("tickwheel://127.0.0.1:7411")
>>> schedules = TickwheelScheduleSource(broker)

Needs ``pip install 'tickwheel[taskiq]'``.
"""

from __future__ import annotations

from tickwheel.errors import TaskiqMissing

try:
    from tickwheel.taskiq.broker import TickwheelBroker
    from tickwheel.taskiq.schedules import TickwheelScheduleSource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "taskiq":
        raise
    raise TaskiqMissing from error

__all__ = ["TickwheelBroker", "TickwheelScheduleSource"]
