"""Looks whether Spark can run here, and says what to install."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tickwheel.arrow.errors import DataError
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


def examine(master: str, open_session: OpenSession) -> list[Check]:
    """Java (where Spark runs in this process), PySpark, and a job of one row on a session of ``master``, which is only
    opened when the others are there."""
    checks = [_checked("java", _java)] if needs_java(master) else []
    checks.append(_checked("pyspark", _pyspark))
    if all(one.ok for one in checks):
        checks.append(_checked("job", lambda: f"{_job(open_session)} on {master}"))
    return checks


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except DataError as error:
        return Check(name, False, f"{error.message} {error.advice}")


def _java() -> str:
    java = find_java()
    return f"{java.version} in {java.home} ({java.found})"


def _pyspark() -> str:
    return str(require_pyspark().__version__)


def _job(open_session: OpenSession) -> str:
    with open_session() as spark:
        try:
            # Through a Python worker: that is where a wrong interpreter shows.
            rows = spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        except Exception as error:
            raise SparkError(f"A job of one row failed: {error}", advice="") from error
        return f"{len(rows)} row"
