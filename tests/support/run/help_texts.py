"""All `--help` texts of the command line on one page, as wide as a recorded page is.

`python -m tests.support.run.help_texts > tests/recorded/help_texts.txt` records them anew, when an option was added.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from tickwheel_cli.main import root

WIDTH = 100
SUBJECTS = ("exit-codes", "times", "errors")
HEADING = "$ tickwheel "


def command_lines(command: click.Command = root, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """What asks for each text: of the command itself, and of all commands inside it."""
    yield (*words, "--help")
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from command_lines(found, (*words, name))


def shown(words: tuple[str, ...]) -> str:
    """What a command line prints."""
    runner = CliRunner(env={"COLUMNS": str(WIDTH)})
    result = runner.invoke(root, words, prog_name="tickwheel", terminal_width=WIDTH)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


def texts() -> dict[str, str]:
    """The text of each command line. That of `bench` is argparse's, which words it differently in each Python."""
    lines = [*command_lines(), *(("help", subject) for subject in SUBJECTS)]
    return {" ".join(words): shown(words) for words in lines if words[0] != "bench"}


def page() -> str:
    """All texts, each below its command line."""
    return "".join(f"{HEADING}{line}\n{text}\n" for line, text in texts().items())


if __name__ == "__main__":
    print(page(), end="")
