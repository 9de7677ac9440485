"""`tickwheel config` and the flags of `tickwheel serve`: what holds, where it comes from, what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tickwheel_broker.config.fields import FIELDS, push_settings
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.main import root
from tickwheel_cli.running.serve import serve


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(root, arguments, env=environment)


def test_show_prints_a_file_that_it_understands(tmp_path: Path) -> None:
    text = run("config", "show", "--ack-wait", "45s").stdout
    assert tomllib.loads(text)["ack_wait"] == "45s"
    file = tmp_path / "tickwheel.toml"
    file.write_text(text)
    assert run("config", "show", "--config", str(file)).stdout == text
    assert run("config", "check", "--config", str(file)).exit_code == 0


def test_origins(tmp_path: Path) -> None:
    file = tmp_path / "tickwheel.toml"
    file.write_text('ack_wait = "1m"\nlisten_port = 1\n')
    shown = run(
        "config",
        "show",
        "--origin",
        "--json",
        "--no-listen-tcp",
        "--unix-socket=s",
        TICKWHEEL_CONFIG=str(file),
        TICKWHEEL_LISTEN_PORT="7500",
    )
    settings = json.loads(shown.stdout)
    assert set(settings) == set(FIELDS)
    assert settings["ack_wait"]["origin"] == f"{file}: ack_wait"
    assert settings["listen_port"] == {"value": 7500, "origin": "TICKWHEEL_LISTEN_PORT"}
    assert settings["listen_tcp"] == {"value": False, "origin": "--listen-tcp"}
    assert settings["max_topics"]["origin"] == "default"
    table = run("config", "show", "--origin", TICKWHEEL_LISTEN_PORT="7500").stdout
    assert "TICKWHEEL_LISTEN_PORT" in table


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--ack-wait", "45"), "--ack-wait"),
        (("--listen-port", "70000"), "--listen-port"),
        (("--log-level", "loud"), "loud"),
        (("--listen-host", "0.0.0.0"), "insecure"),
    ],
)
def test_bad_settings_have_an_exit_code_of_their_own(arguments: tuple[str, ...], problem: str) -> None:
    for command in (("config", "check"), ("serve",)):
        refused = run(*command, *arguments)
        assert refused.exit_code == ExitCode.BAD_CONFIG
        assert refused.stderr.startswith("error [bad_config]: ")
        assert problem in refused.stderr


def test_all_problems_are_shown_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tickwheel.toml"
    file.write_text('ack_wiat = "1m"\nlisten_port = 70000\n')
    refused = run("config", "check", "--config", str(file), "--ack-wait", "400d", TICKWHEEL_LOG_LEVL="info")
    lines = refused.stderr.splitlines()
    assert len(lines) == 5, "four problems and the advice"
    for line, problem in zip(
        lines,
        ("did you mean ack_wait?", "at most 65535", "TICKWHEEL_LOG_LEVEL?", "at most 365d"),
        strict=False,
    ):
        assert problem in line
    assert "config check" not in lines[-1]
    refused = run("config", "check", "--no-listen-tcp", "--max-backoff", "1s")
    assert "nothing to listen on" in refused.stderr
    assert "is below ack_wait" in refused.stderr


def test_json_has_plain_values() -> None:
    shown = json.loads(run("config", "show", "--json").stdout)
    assert (shown["ack_wait"], shown["listen_port"], shown["listen_tcp"]) == ("30s", 7411, True)
    assert (shown["segment_bytes"], shown["unix_socket"]) == ("64MiB", "")


@pytest.mark.parametrize("command", [("serve",), ("config", "show"), ("config", "check")])
def test_help_tells_the_defaults(command: tuple[str, ...]) -> None:
    shown = " ".join(run(*command, "--help").stdout.split())
    assert "--ack-wait DURATION A message" in shown
    assert '[default: "30s"]' in shown
    assert shown.count("[default: ") >= len(FIELDS) - len(push_settings())


def test_serve_has_a_flag_for_every_setting() -> None:
    flags = {parameter.name for parameter in serve.params}
    assert set(FIELDS) - set(push_settings()) <= flags
    assert not flags.intersection(push_settings()), "they are those of tickwheel push"
