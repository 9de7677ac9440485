"""The command line as a whole: help, the table of commands, shared options, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.run.cases import table
from tickwheel.errors import DirectoryLocked, NotConnected
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.main import COMMANDS, root
from tickwheel_cli.shared.failures import (
    EXIT_CODES,
    INTERRUPTED,
    READER_GONE,
    TIMED_OUT,
    CommandError,
    CommandFailed,
    report_failure,
)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_help_lists_every_command_and_examples(runner: CliRunner) -> None:
    shown = runner.invoke(root, ["--help"])
    assert shown.exit_code == 0
    assert all(f"\n  {name} " in shown.stdout for name in COMMANDS)
    assert "tickwheel send reminders" in shown.stdout


def test_help_imports_no_command() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from tickwheel_cli.main import root;"
        "assert CliRunner().invoke(root, ['--help']).exit_code == 0;"
        "heavy = {'trio', 'anyio', 'numpy', 'rich', 'msgspec', 'broker', 'timerlog', 'tickwheel', 'native'};"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@table("name", list(COMMANDS))
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = COMMANDS[name].load()
    assert command.name == name
    assert command.help is not None
    assert command.get_short_help_str(200).rstrip(".") in command.help.replace("\n", " ")


@table("name", [name for name in COMMANDS if name != "bench"])
def test_every_command_has_help(runner: CliRunner, name: str) -> None:
    shown = runner.invoke(root, [name, "--help"])
    assert shown.exit_code == 0, shown.stderr
    assert "Usage: " in shown.stdout
    assert runner.invoke(root, ["help", name]).stdout.splitlines()[2:] == shown.stdout.splitlines()[2:]


@table("name", ["send", "receive", "cancel", "topics", "stats", "wheel", "inspect", "demo"])
def test_every_command_that_prints_has_json(name: str) -> None:
    assert "--json" in {option for p in COMMANDS[name].load().params for option in p.opts}


@table("subject", ["times", "errors", "exit-codes"])
def test_subjects_are_explained(runner: CliRunner, subject: str) -> None:
    assert len(runner.invoke(root, ["help", subject]).stdout.splitlines()) > 4


def test_every_exit_code_is_documented_once(runner: CliRunner) -> None:
    codes = [int(code) for code, _ in EXIT_CODES]
    assert sorted(codes) == codes
    assert set(codes) == {*map(int, ExitCode), TIMED_OUT, INTERRUPTED, READER_GONE}
    table = json.loads(runner.invoke(root, ["help", "exit-codes", "--json"]).stdout)
    assert table == {str(int(code)): meaning for code, meaning in EXIT_CODES}


@table(
    "arguments",
    [
        ["nothing"],
        ["help", "nothing"],
        ["send"],
        ["send", "t"],
        ["send", "t", "body", "--in", "5"],
        ["send", "t", "body", "--at", "2031-05-01T09:00"],
        ["send", "t", "body", "--in", "5s", "--at", "2031-05-01T09:00Z"],
        ["send", "t", "body", "--header", "novalue"],
        ["send", "t", "body", "--priority", "256"],
        ["send", "t", "body", "--file", "-"],
        ["send", "t", "--from-file", "-", "--key", "k"],
        ["receive"],
        ["receive", "t", "--count", "0"],
        ["receive", "t", "--nack", "soon"],
        ["receive", "t", "--nack", "1s", "--no-ack"],
        ["receive", "t", "--nack", "1s", "--give-up"],
        ["receive", "t", "--uncounted"],
        ["receive", "t", "--nack", "1s", "--uncounted", "--error", "why"],
        ["receive", "t", "--error", "why"],
        ["cancel"],
        ["cancel", "topic"],
        ["cancel", "0"],
        ["cancel", "a", "b", "--key", "k"],
        ["cancel", "--topic", "t"],
        ["cancel", "--key", "k"],
        ["reschedule", "5"],
        ["demo", "--year", "--date", "2013-07-04"],
        ["completion", "powershell"],
        ["--url", "tickwheel://127.0.0.1:1", "--data", "d", "topics"],
    ],
)
def test_wrong_usage_is_refused_with_advice_before_anything_is_done(
    runner: CliRunner, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = runner.invoke(root, arguments)
    assert not list(tmp_path.iterdir())
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Error: " in refused.stderr


@table("command", ["cancel", "redeliver"])
def test_what_may_be_named_is_said(runner: CliRunner, command: str) -> None:
    refused = runner.invoke(root, [command, "orders", "--json"])
    message = json.loads(refused.stderr)["error"]["message"]
    assert all(option in message for option in ("--key", "--all", "--state"))


def test_only_a_new_schedule_has_defaults(runner: CliRunner) -> None:
    assert "[default: allow]" in runner.invoke(root, ["schedules", "create", "--help"]).stdout
    assert "[default:" not in runner.invoke(root, ["schedules", "set", "--help"]).stdout.split("--url")[0]


def test_usage_errors_are_json_when_asked(runner: CliRunner) -> None:
    refused = runner.invoke(root, ["send", "t", "body", "--in", "5", "--json"])
    error = json.loads(refused.stderr)["error"]
    assert (refused.exit_code, error["code"]) == (2, "usage")
    assert "duration" in error["message"]
    refused = runner.invoke(root, ["receive", "t", "--raw", "--json"])
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["code"]) == (2, "usage")


def test_no_broker_is_a_typed_error(runner: CliRunner) -> None:
    # Nobody listens on the discard port of this address: connecting is refused at once.
    refused = runner.invoke(root, ["--json", "--url", "tickwheel://127.0.0.1:9", "topics"])
    assert refused.exit_code == ExitCode.NOT_CONNECTED
    error = json.loads(refused.stderr)["error"]
    assert (error["code"], error["retryable"]) == ("not_connected", True)
    assert error["advice"]


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (DirectoryLocked("held"), "locked", ExitCode.LOCKED),
        (NotConnected("gone"), "not_connected", ExitCode.NOT_CONNECTED),
        (CommandError("timed_out", "late", exit_code=TIMED_OUT), "timed_out", TIMED_OUT),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [NotConnected("gone")])]), "not_connected", 69),
        (FileNotFoundError(2, "No such file", "x.jsonl"), "io", 1),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: Exception, code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_failure(error, as_json=False) == exit_code
    assert capsys.readouterr().err.startswith(f"error [{code}]: ")
    assert report_failure(error, as_json=True) == exit_code
    assert json.loads(capsys.readouterr().err)["error"]["code"] == code


def test_a_defect_shows_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(KeyError("x"), as_json=False) == ExitCode.DEFECT
    shown = capsys.readouterr().err
    assert "KeyError" in shown
    assert "please report" in shown


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(click.Abort(), 130), (KeyboardInterrupt(), 130), (CommandFailed(5), 5), (SystemExit(4), 4)],
)
def test_quiet_endings(error: BaseException, exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(error, as_json=False) == exit_code
    assert capsys.readouterr().err == ""


@table("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(runner: CliRunner, shell: str) -> None:
    script = runner.invoke(root, ["completion", shell]).stdout
    assert "_TICKWHEEL_COMPLETE" in script
    assert "tickwheel" in script


def test_completion_completes_commands(runner: CliRunner) -> None:
    found = runner.invoke(
        root,
        [],
        prog_name="tickwheel",
        env={"_TICKWHEEL_COMPLETE": "bash_complete", "COMP_WORDS": "tickwheel re", "COMP_CWORD": "1"},
    )
    names = ["receive", "reschedule", "redeliver", "repair", "restore"]
    assert sorted(found.stdout.split()) == sorted(f"plain,{name}" for name in names)


def test_version(runner: CliRunner) -> None:
    assert runner.invoke(root, ["--version"], prog_name="tickwheel").stdout.startswith("tickwheel 0.")
