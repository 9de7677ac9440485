"""The options that all commands of `tickwheel pipeline` share, and the session of Spark that they ask for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from tickwheel_cli.shared.session import current_session

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


def storage_options(command: _Command) -> _Command:
    """`--fs`, which ``tickwheel.spark.storage.parse_options`` reads."""
    return click.option(
        "--fs",
        "fs_pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of an object store or HDFS, such as endpoint; KEY=@FILE: its value is in a file. May be given "
        "several times.",
    )(command)


def needs_spark(command: Callable[..., None]) -> Callable[..., None]:
    """For a command that imports what may be missing: that is said first. Raises `SparkMissing`."""

    @wraps(command)
    def run(**options: Any) -> None:
        from tickwheel.spark.sessions import find_pyspark

        find_pyspark()  # `open_spark` imports it, when all that is wrong with the options was said
        command(**options)

    return run


def directories_option(*, required: bool = True) -> Callable[[_Command], _Command]:
    """`--data`, which may be repeated."""
    return click.option(
        "--data",
        "directories",
        multiple=True,
        required=required,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="A broker's data directory, also while it runs; several: one for each shard.",
    )


def places_of(directories: tuple[Path, ...]) -> list[str]:
    """What a command reads: data directories, or the broker of `--url`."""
    url = current_session().url
    if directories and url is not None:
        raise click.UsageError("--data names directories, and --url a broker: give one of them")
    if directories:
        return [str(directory) for directory in directories]
    if url is None and not os.environ.get("TICKWHEEL_URL"):
        raise click.UsageError("name a data directory (--data) or a broker with `tickwheel flight` (--url)")
    return [url or os.environ["TICKWHEEL_URL"]]


def tables_of(directories: tuple[Path, ...]) -> dict[str, str]:
    """Which tables a command reads, as options of the data source."""
    places = places_of(directories)
    if directories:
        return {"paths": json.dumps(places)}
    from tickwheel.arrow.options import secret_files

    return {"url": places[0], **secret_files(**secret_paths())}


class SecretPaths(TypedDict):
    """Files of a token and of a CA, which each machine that has tasks has under the same name; None: none is named."""

    token_file: str | None
    ca_file: str | None


def secret_paths() -> SecretPaths:
    """The files that `--token-file`, `--ca` or the environment name."""
    return {
        "token_file": os.environ.get("TICKWHEEL_TOKEN_FILE") or None,
        "ca_file": os.environ.get("TICKWHEEL_CA") or None,
    }


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
