"""`tickwheel gateway`: what is refused before it serves, and its credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.support.clients.certificates import Files
from tickwheel_broker.config.fields import rocketmq_flags
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.beside.gateway import _serving, gateway
from tickwheel_cli.main import root
from tickwheel_cli.shared.session import Session
from tickwheel_gateway.clients.credentials import DATE_TIME, Credentials, Pair, sign
from tickwheel_gateway.config import Config, Group
from tickwheel_gateway.server import Serving


def run(*words: str) -> Result:
    return CliRunner().invoke(root, words)


def add(folder: Path, name: str, *words: str) -> Result:
    token_file = folder / "token"
    token_file.write_text("twk_1\n")
    return run("gateway", "credentials", "add", name, "--token-file", str(token_file), *words)


def test_a_flag_for_each_setting() -> None:
    assert set(rocketmq_flags()) <= {parameter.name for parameter in gateway.params}


def serving(**settings: Any) -> Serving:
    """What is made of settings."""
    with click.Context(root, obj=Session()):
        return _serving(from_arguments(rocketmq=True, **settings), ends_with_stdin=False)


def test_what_is_made_of_settings() -> None:
    found = serving(
        auto_create_topics=False,
        max_body_bytes="1MiB",
        max_frame_bytes="9MiB",
        rocketmq_advertise="broker.example:443",
        rocketmq_queues=2,
        rocketmq_receive_batch_size=3,
        rocketmq_long_polling_max="4s",
        rocketmq_invisible_min="5s",
        rocketmq_invisible_max="6s",
        rocketmq_renew_lease="17s",
        rocketmq_renew_max="18s",
        rocketmq_max_attempts=9,
        rocketmq_retry_delays="10s 1m",
        rocketmq_groups="a=3 b=5:11s,2m",
        rocketmq_fifo_groups="*-fifo other",
        rocketmq_priority_topics="p*",
        rocketmq_max_delay="1d",
        rocketmq_max_connections=12,
        rocketmq_max_streams=113,
        rocketmq_max_pending_bytes="14MiB",
        rocketmq_credentials_file="file",
        rocketmq_metrics="127.0.0.1:7415",
    )
    assert found.config == Config(
        advertise=("broker.example", 443),
        max_body_bytes=1 << 20,
        creates_topics=False,
        queues=2,
        receive_batch_size=3,
        long_polling_max_ms=4_000,
        invisible_min_ms=5_000,
        invisible_max_ms=6_000,
        renew_lease_ms=17_000,
        renew_max_ms=18_000,
        max_attempts=9,
        retry_delays_ms=(10_000, 60_000),
        groups={"a": Group(3), "b": Group(5, (11_000, 120_000))},
        fifo_groups=("*-fifo", "other"),
        max_delay_ms=86_400_000,
        priority_topics=("p*",),
    )
    limits = found.limits
    assert (limits.connections, limits.streams) == (12, 113)
    assert (limits.message_bytes, limits.pending_bytes) == (9 << 20, 14 << 20)
    assert (found.credentials, found.surroundings.watched_at) == (Path("file"), ("127.0.0.1", 7_415))
    assert serving().config == Config()
    assert (serving().credentials, serving().surroundings.watched_at, serving().tls) == (None, None, None)


def test_plain_text_is_taken_where_no_other_machine_comes(tmp_path: Path) -> None:
    files = Files(tmp_path)
    secure = {
        "tls_certificate": files.certificate_path,
        "tls_key": files.key_path,
        "rocketmq_credentials_file": "file",
    }
    there = {"rocketmq_listen": "0.0.0.0:8081"}
    assert serving(**secure).is_plain_allowed
    assert not serving(**secure, **there).is_plain_allowed
    assert serving(**secure, **there, insecure=True).is_plain_allowed
    assert serving(**there, insecure=True).is_plain_allowed


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
