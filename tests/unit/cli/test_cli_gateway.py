"""`tickwheel gateway`: what is refused before it serves, and its credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tickwheel_broker.config.fields import rocketmq_flags
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.main import root
from tickwheel_cli.running.gateway import gateway
from tickwheel_gateway.clients.credentials import DATE_TIME, Credentials, Pair, sign


def run(*words: str) -> Result:
    return CliRunner().invoke(root, words)


def add(folder: Path, name: str, *words: str) -> Result:
    token_file = folder / "token"
    token_file.write_text("twk_1\n")
    return run("gateway", "credentials", "add", name, "--token-file", str(token_file), *words)


def test_a_flag_for_each_setting() -> None:
    assert set(rocketmq_flags()) <= {parameter.name for parameter in gateway.params}


def test_without_what_it_needs(tmp_path: Path) -> None:
    program = "import sys; sys.modules['h2'] = None; from tickwheel_cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "gateway", "--json"], cwd=tmp_path, capture_output=True, check=False
    )
    told = json.loads(done.stderr)["error"]
    assert told["code"] == "extra_missing"
    assert "tickwheel[rocketmq]" in told["advice"]


def test_no_directory(tmp_path: Path) -> None:
    result = run("--data", str(tmp_path), "gateway")
    assert result.exit_code == 2
    assert "needs a broker that runs" in result.stderr


def test_a_pair_is_printed_and_good(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    told = add(tmp_path, "shop", "--file", str(file))
    assert told.exit_code == 0
    words = told.stdout.split()
    assert words[:3] == ["access", "key", "shop"]
    metadata = {DATE_TIME: "now", "authorization": sign(Pair("shop", words[-1]), "now")}
    assert Credentials(file).token_of(metadata) == "twk_1"
    again = add(tmp_path, "shop", "--file", str(file))
    assert again.exit_code == ExitCode.BAD_CONFIG
    assert "has the access key shop already" in again.stderr


def test_the_file_of_the_configuration(tmp_path: Path) -> None:
    file, config = tmp_path / "credentials", tmp_path / "tickwheel.toml"
    config.write_text(f'rocketmq_credentials_file = "{file}"\n')
    told = add(tmp_path, "shop", "--config", str(config), "--json")
    assert json.loads(told.stdout)["file"] == str(file)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [(), ("--file", "none/credentials")])
def test_no_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = add(tmp_path, "shop", *words)
    assert told.exit_code != 0
    assert "--file" in told.stderr or "nothing was added" in told.stderr
