"""`tickwheel simulate`: a thin front for the `simulation` package."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING

import click

from tickwheel.errors import GatewayMissing
from tickwheel_cli.beside.gateway import NEEDED
from tickwheel_cli.shared.output import print_json
from tickwheel_cli.shared.session import current_session, json_option

LINES_SHOWN = 20

if TYPE_CHECKING:  # older versions of click refuse the subscript when a program runs
    _ParamType = click.ParamType[range]
else:
    _ParamType = click.ParamType


class SeedRange(_ParamType):
    """`7`, or `1-200`."""

    name = "seeds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Both ends belong to it."""
        first, dash, last = str(value).partition("-")
        if first.isdecimal() and (last.isdecimal() if dash else not last):
            seeds = range(int(first), int(last if dash else first) + 1)
            return seeds or self.fail(f"{value!r} has no seed in it: the smaller one comes first", param, ctx)
        return self.fail(f"{value!r} is no range of seeds; write 7 or 1-200", param, ctx)


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="What decides everything. Default: a random one.")
@click.option("--seeds", type=SeedRange(), metavar="A-B", help="Many, one after the other.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="How long clients are at work, in simulated time; nights come on top.",
)
@click.option("--cluster", is_flag=True, help="Several machines, which share one log.")
@click.option("--rocketmq", is_flag=True, help="Most clients are those of RocketMQ, behind gateways.")
@json_option
def simulate(seed: int | None, seeds: range | None, hours: float, cluster: bool, rocketmq: bool) -> int:
    """Run broker and clients in one process, in simulated time, on a disk and a network that fail.

    The broker is killed, loses power, gets errors from its disk, and its clock jumps. Everything that happens follows
    from the seed, so that a run that finds a defect can be repeated. An oracle checks at every step that nothing
    acknowledged is lost, nothing comes early, nobody else has a message, and order holds. In a cluster, nodes are
    also stopped and cut off, and any of them is told at any moment to own the log. Behind gateways, these are
    killed and stopped as well; that needs pip install 'tickwheel[rocketmq]'.

    \b
    tickwheel simulate --seed 7 --hours 0.5
    tickwheel simulate --seeds 1-200

    A seed with the default hours takes seconds, an hour some minutes. It needs no daemon and keeps no files. Exit code:
    0 when every promise was kept, otherwise 1.
    """
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds exclude each other")
    chosen = seeds if seeds is not None else [secrets.randbelow(1 << 32) if seed is None else seed]
    # Broker and clients are imported only for a simulation.
    if rocketmq:
        try:
            import_module("tickwheel_simulation.rocketmq.site")
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in NEEDED:
                raise
            raise GatewayMissing from error
    return max([_run_one(one, hours, is_cluster=cluster, has_gateway=rocketmq) for one in chosen], default=0)


def _run_one(seed: int, hours: float, *, is_cluster: bool, has_gateway: bool) -> int:
    from tickwheel_simulation.run import run_seed

    report = run_seed(seed, hours, is_cluster=is_cluster, has_gateway=has_gateway)
    if current_session().json:
        print_json(asdict(report) | {"command": report.command})
        return 1 if report.violation else 0
    counts = ", ".join(f"{count:,} {name}" for name, count in report.counts.items())
    days = report.simulated_s / 86_400
    click.echo(f"seed {seed}: {'FAILED' if report.violation else 'ok'}; {days:,.1f} simulated days; {counts}")
    if not report.violation:
        return 0
    click.echo(f"{report.violation}\n\nprofile: {report.profile}\n\nlast events:")
    for line in report.trace_tail[-LINES_SHOWN:]:
        click.echo(f"  {line}")
    click.echo(f"\nTo repeat it: {report.command}")
    return 1
