"""`tickwheel completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_COMPLETE_VARIABLE = "_TICKWHEEL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  tickwheel completion bash > ~/.local/share/bash-completion/completions/tickwheel
    zsh:   tickwheel completion zsh > "${fpath[1]}/_tickwheel"
    fish:  tickwheel completion fish > ~/.config/fish/completions/tickwheel.fish
    """
    scripts = get_completion_class(shell)
    assert scripts is not None
    click.echo(scripts(ctx.find_root().command, {}, "tickwheel", _COMPLETE_VARIABLE).source())
