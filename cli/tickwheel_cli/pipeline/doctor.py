"""`tickwheel pipeline doctor`: can Spark run here?"""

from __future__ import annotations

import click

from tickwheel_cli.pipeline.options import open_spark, spark_options
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import json_option


@click.command()
@spark_options
@json_option
def doctor(master: str, conf: tuple[str, ...]) -> None:
    """Check that Spark can run here: Java, PySpark, and a job of one row."""
    from tickwheel.spark.doctor import examine

    checks = examine(master, lambda: open_spark(master, conf))
    print_result(
        [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in checks],
        *(f"{'ok' if one.ok else 'missing':<8}{one.name:<10}{one.detail}" for one in checks),
    )
    if not all(one.ok for one in checks):
        raise CommandFailed(1)
