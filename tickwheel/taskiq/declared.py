"""The schedules that stand at tasks, in their label ``schedule``: as Taskiq's ``LabelScheduleSource`` has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from taskiq import AsyncBroker, ScheduledTask

from tickwheel.taskiq.labels import moment

LABEL: Final = "schedule"


def declared(broker: AsyncBroker, marked: str) -> Iterator[ScheduledTask]:
    """Those of all tasks of a broker; not those whose time has passed. ``marked``: how their ids begin. Raises
    ValueError for what is none."""
    for name, task in broker.get_all_tasks().items():
        if task.broker is not broker:
            continue
        own = {label: value for label, value in task.labels.items() if label != LABEL}
        for said in task.labels.get(LABEL, []):
            time = said.get("time")
            if time is not None and moment(time) <= datetime.now(UTC):
                continue
            yield ScheduledTask(
                task_name=name,
                labels={**said.get("labels", {}), **own},
                args=said.get("args", []),
                kwargs=said.get("kwargs", {}),
                schedule_id=marked + _hash_of(name, said),
                cron=said.get("cron"),
                cron_offset=said.get("cron_offset"),
                interval=said.get("interval"),
                time=time,
            )


def _hash_of(name: str, said: dict[str, Any]) -> str:
    """Made of all that is said, so that a change is another schedule."""
    return uuid5(NAMESPACE_URL, json.dumps([name, said], sort_keys=True, default=str)).hex
