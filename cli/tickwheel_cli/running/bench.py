"""`tickwheel bench`: a thin front for the `bench` package, which has its own options."""

from __future__ import annotations

from importlib import import_module

import click


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
    return int(import_module("tickwheel_bench").main(ctx.args) or 0)
