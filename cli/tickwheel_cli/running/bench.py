"""`tickwheel bench`: a thin front for the `bench` package, which has its own options."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from tickwheel_cli.shared.failures import CommandError

EXTRAS: Final = "celery,cluster,dramatiq,flight,push,query,rocketmq,spark,sql,web"
"""Whose packages a benchmark imports, or a program that it starts."""


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.pass_context
def bench(ctx: click.Context) -> int:
    """Measure speed and lateness on this machine.

    \b
    tickwheel bench --help
    """
    # Found by name: the harness is for measuring, so nothing else of the command line depends on it.
    try:
        import_module("tickwheel_bench.command")
    except ModuleNotFoundError as error:
        raise CommandError(
            "extra_missing",
            f"The benchmarks need {error.name}, which is not installed.",
            advice=f"Install what they measure: pip install 'tickwheel[{EXTRAS}]'.",
        ) from error
    return int(import_module("tickwheel_bench").main(ctx.args) or 0)
