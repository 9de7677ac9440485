"""Looks whether Spark can run here, and says what to install."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tickwheel.protocol.errors import TickwheelError
from tickwheel.spark.errors import SparkError
from tickwheel.spark.java import find_java
from tickwheel.spark.sessions import needs_java, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OpenSession: TypeAlias = "Callable[[], AbstractContextManager[SparkSession]]"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is needed; ``detail`` says what was found, or what to do."""

    name: str
    ok: bool
    detail: str


def examine(master: str, open_session: OpenSession, source: Mapping[str, str] | None = None) -> list[Check]:
    """Java (where Spark runs in this process), PySpark, and a job of one row on a session of ``master``, which is only
    opened when the others are there. With a ``source``, as options of the data source, whether the driver and each
    executor can read there, too: the driver before a session is opened."""
    checks = [_checked("java", _java)] if needs_java(master) else []
    checks.append(_checked("pyspark", _pyspark))
    if source is not None:
        checks.append(_checked("driver", lambda: _driver(source)))
    if not all(one.ok for one in checks):
        return checks
    with ExitStack() as stack:
        sessions: list[SparkSession] = []

        def job() -> str:
            sessions.append(stack.enter_context(open_session()))
            return f"{_job(sessions[0])} on {master}"

        checks.append(_checked("job", job))
        if source is not None and checks[-1].ok:
            checks += _executors(sessions[0], source)
    return checks


def _driver(source: Mapping[str, str]) -> str:
    from tickwheel.spark.reach import reach_of_this_process

    found = reach_of_this_process(source)
    if not found.is_well:
        raise SparkError(found.told(), advice="")
    return found.told()


def _executors(spark: SparkSession, source: Mapping[str, str]) -> list[Check]:
    from tickwheel.spark.reach import reach_of_executors, versions_of_this_process

    try:
        found = reach_of_executors(spark, source)
    except TickwheelError as error:
        return [Check("executor", False, f"{error.message} {error.advice}")]
    here = versions_of_this_process()
    return [
        Check("executor", one.is_well, one.told())
        if one.error or one.versions == here
        else Check("executor", False, f"{one.host}: {one.versions}, and the driver has {here}")
        for one in found
    ]


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except TickwheelError as error:
        return Check(name, False, f"{error.message} {error.advice}")


def _java() -> str:
    java = find_java()
    return f"{java.version} in {java.home} ({java.found})"


def _pyspark() -> str:
    return str(require_pyspark().__version__)


def _job(spark: SparkSession) -> str:
    try:
        # Through a Python worker: that is where a wrong interpreter shows.
        rows = spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
    except Exception as error:
        raise SparkError(f"A job of one row failed: {error}", advice="") from error
    return f"{len(rows)} row"
