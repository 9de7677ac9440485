"""`tickwheel serve`: the broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.running.settings_options import config_file_option, setting_options
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import print_json
from tickwheel_cli.shared.session import current_session, json_option

if TYPE_CHECKING:
    from tickwheel_broker.daemon import Running


@click.command()
@config_file_option
@setting_options
@json_option
def serve(config_file: Path | None, **flags: Any) -> None:
    """Run the broker until Ctrl-C or SIGTERM.

    \b
    tickwheel serve --data ./data
    tickwheel serve --data ./data --listen-port 0 --unix-socket ./tickwheel.sock
    tickwheel serve --config tickwheel.toml

    Settings come from defaults, then the file, then TICKWHEEL_… variables, then flags; `tickwheel config
    show` prints them all. When clients can connect, one line on standard output says where. The log is on
    standard error.
    """
    from tickwheel_broker.config.load import load
    from tickwheel_broker.daemon import run

    if flags["data_dir"] is None and current_session().data is not None:
        flags["data_dir"] = current_session().data
    loaded = load(config_file, flags=flags)
    exit_code = run(loaded.settings, ready=_announce)
    if exit_code:
        raise CommandFailed(exit_code)


def _announce(running: Running) -> None:
    if current_session().json:
        print_json({"urls": running.urls, "data_dir": running.settings.data_dir})
    else:
        click.echo(f"listening on {' and '.join(running.urls)}, data in {running.settings.data_dir}")
