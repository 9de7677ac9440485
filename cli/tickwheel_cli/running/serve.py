"""`tickwheel serve`: the broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.settings_options import SectionedCommand, config_file_option, setting_options

if TYPE_CHECKING:
    from tickwheel_broker.daemon import Running


@click.command(cls=SectionedCommand)
@config_file_option
@setting_options
@json_option
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the broker until Ctrl-C or SIGTERM.

    \b
    tickwheel serve --data ./data
    tickwheel serve --data ./data --listen-port 0 --unix-socket ./tickwheel.sock
    tickwheel serve --data ./data --web
    tickwheel serve --data ./data --rocketmq
    tickwheel serve --config tickwheel.toml
    tickwheel serve --data ./data --cluster kafka://k1:9092,k2:9092,k3:9092/orders --node 1

    Settings come from defaults, then the file, then TICKWHEEL_… variables, then flags; `tickwheel config
    show` prints them all. When clients can connect, one line on standard output says where. The log is on
    standard error.
    """
    from tickwheel_broker.config.load import load
    from tickwheel_broker.daemon import run

    if flags["data_dir"] is None and current_session().data is not None:
        flags["data_dir"] = current_session().data
    loaded = load(config_file, flags=flags)
    if loaded.settings.cluster:
        from tickwheel_broker.node.process import serve_node

        exit_code = run(loaded.settings, ready=_announce_node, serving=serve_node)
    else:
        exit_code = run(loaded.settings, ready=_announce)
    if exit_code:
        raise CommandFailed(exit_code)


def _announce(running: Running) -> None:
    print_result(
        {"urls": running.urls, **_beside(running), "data_dir": running.settings.data_dir},
        f"listening on {' and '.join([*running.urls, *chain(*_beside(running).values())])}, "
        f"data in {running.settings.data_dir}",
    )


def _beside(running: Running) -> dict[str, list[str]]:
    """Where HTTP API and gateway are, if there are any."""
    return {} if running.children is None else running.children.urls


def _announce_node(running: Running) -> None:
    settings = running.settings
    print_result(
        {
            "urls": running.urls,
            **_beside(running),
            "data_dir": settings.data_dir,
            "cluster": settings.cluster,
            "node": settings.node,
        },
        f"node {settings.node} of {settings.cluster}, listening on {' and '.join(running.urls)}, "
        f"data in {settings.data_dir}",
    )
