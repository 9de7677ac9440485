"""The options that all commands of `tickwheel pipeline` share, and the session of Spark that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Command = TypeVar("_Command", bound=Callable[..., Any])


def spark_options(command: _Command) -> _Command:
    """`--master` and `--conf`."""
    with_conf = click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be given several times."
    )(command)
    return click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs: local[N], spark://…, yarn, k8s://…, sc://…",
    )(with_conf)


def needs_spark(command: Callable[..., None]) -> Callable[..., None]:
    """For a command that imports what may be missing: that is said first. Raises `SparkMissing`."""

    @wraps(command)
    def run(**options: Any) -> None:
        from tickwheel.spark.sessions import require_pyspark

        require_pyspark()
        command(**options)

    return run


def directories_option(command: _Command) -> _Command:
    """`--data`, which may be repeated."""
    return click.option(
        "--data",
        "directories",
        multiple=True,
        required=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="A broker's data directory, also while it runs; several: one for each shard.",
    )(command)


def source_option(command: _Command) -> _Command:
    """`--source`."""
    return click.option(
        "--source",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The broker's data directory as it is named here.  [default: what the broker says]",
    )(command)


@contextmanager
def open_spark(master: str, conf: tuple[str, ...], *, progress: bool | None = None) -> Iterator[SparkSession]:
    """A Spark session as the options say; `progress`: of Spark's own, as for `make_session`. Raises `SparkMissing`,
    `JavaMissing`, `SourceError`."""
    from tickwheel.spark import sessions

    settings = sessions.parse_conf(conf)
    spark = sessions.make_session("tickwheel pipeline", master=master, conf=settings, progress=progress)
    try:
        yield spark
    finally:
        spark.stop()
