"""Settings: every origin, their order, and every refusal with its origin in the message."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel.protocol.errors import ConfigError
from tickwheel_broker.config.example import example_toml
from tickwheel_broker.config.fields import FIELDS
from tickwheel_broker.config.load import from_arguments, load
from tickwheel_broker.config.settings import Settings

REPOSITORY = Path(__file__).parents[4]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults() -> None:
    loaded = load(environment={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.settings.listen_host == "127.0.0.1"
    assert loaded.settings.listen_port == 7411


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = write(tmp_path / "t.toml", 'ack_wait = "1s"\nmax_body_bytes = "1MiB"\nlisten_port = 1\n')
    environment = {"TICKWHEEL_ACK_WAIT": "2s", "TICKWHEEL_MAX_BODY_BYTES": "2MiB", "HOME": "/root"}
    loaded = load(file, environment, {"ack_wait": "3s", "log_level": None})
    assert loaded.settings.ack_wait_ms == 3_000
    assert loaded.settings.max_body_bytes == 2 << 20
    assert loaded.settings.listen_port == 1
    assert loaded.origins["ack_wait"] == "--ack-wait"
    assert loaded.origins["max_body_bytes"] == "TICKWHEEL_MAX_BODY_BYTES"
    assert loaded.origins["listen_port"] == f"{file}: listen_port"
    assert loaded.origins["log_level"] == "default"


@pytest.mark.promise("R38")
def test_each_setting_can_be_given_everywhere(tmp_path: Path) -> None:
    text = example_toml().replace("\n#", "\n").replace("\n ", "\n# ")
    values = tomllib.loads(text)
    assert set(values) == set(FIELDS)
    assert load(write(tmp_path / "t.toml", text), {}).settings == Settings()
    environment = {FIELDS[name].variable: str(value) for name, value in values.items()}
    assert load(environment=environment).settings == Settings()
    assert load(environment={}, flags=values).settings == Settings()
    assert from_arguments(**values) == Settings()


def test_the_example_file_is_that_of_the_settings() -> None:
    assert (REPOSITORY / "docs" / "tickwheel.example.toml").read_text() == example_toml()


def test_the_example_file_changes_nothing(tmp_path: Path) -> None:
    assert load(REPOSITORY / "docs" / "tickwheel.example.toml", {}).settings == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('ack_wiat = "1s"', "unknown setting 'ack_wiat'; did you mean ack_wait"),
        ("zzz = 1", "unknown setting 'zzz'; `tickwheel config show`"),
        ("ack_wait = 30", "ack_wait: a duration needs its unit"),
        ('ack_wait = "thirty"', "ack_wait: 'thirty' is not a duration"),
        ('ack_wait = "0s"', "ack_wait: '0s' is not possible: at least 1ms"),
        ('max_body_bytes = "17MiB"', "max_body_bytes: '17MiB' is not possible: at most 16MiB"),
        ("listen_port = 70000", "listen_port: 70000 is not possible"),
        ('log_level = "loud"', "log_level: 'loud' is not one of debug, info, warning, error"),
        ('insecure = "maybe"', "insecure: 'maybe' is neither true nor false"),
        ("data_dir = 3", "data_dir: 3 is not possible: expected `str`, got `int`"),
        ("listen_port = ", "is not valid TOML"),
        ('listen_host = "0.0.0.0"', "other machines may reach"),
        ('listen_host = "broker.example"', "other machines may reach"),
        ("listen_tcp = false", "nothing to listen on"),
        (f'unix_socket = "/{"x" * 100}"', "longer than 100 bytes"),
        ('min_backoff = "2h"', "is below min_backoff"),
        ('ack_wait = "2h"', "is below ack_wait"),
        ('max_frame_bytes = "1MiB"', "must be at least"),
        ('segment_bytes = "16MiB"', "to hold a frame of max_frame_bytes"),
    ],
)
def test_refusals_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "bad.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert message in caught.value.message
    assert "bad.toml" in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load(tmp_path / "gone.toml", {})


def test_refusals_name_the_variable_and_the_flag() -> None:
    with pytest.raises(ConfigError, match="TICKWHEEL_LISTEN_PORT: 'http' is not a whole number"):
        load(environment={"TICKWHEEL_LISTEN_PORT": "http"})
    with pytest.raises(ConfigError, match="--ack-wait: 'x' is not a duration"):
        load(environment={}, flags={"ack_wait": "x"})
    with pytest.raises(
        ConfigError, match="unknown variable TICKWHEEL_ACK_WIAT; did you mean TICKWHEEL_ACK_WAIT"
    ):
        load(environment={"TICKWHEEL_ACK_WIAT": "1s"})
    with pytest.raises(ConfigError, match="unknown setting 'ackwait'; did you mean ack_wait"):
        from_arguments(ackwait="1s")


def test_variables_of_others_are_not_ours() -> None:
    environment = {
        "TICKWHEEL_URL": "tickwheel://127.0.0.1:1",
        "TICKWHEEL_PORT": "tcp://10.0.0.1:7411",
        "TICKWHEEL_SERVICE_HOST": "10.0.0.1",
        "TICKWHEEL_PORT_7411_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment=environment).settings == Settings()


def test_off_loopback_only_when_asked_for() -> None:
    settings = from_arguments(listen_host="0.0.0.0", insecure=True)
    assert settings.listen_host == "0.0.0.0"
    assert from_arguments(listen_host="::1").listen_host == "::1"
    assert from_arguments(listen_host="localhost").listen_host == "localhost"


def test_http_for_other_machines_needs_tls_too() -> None:
    with pytest.raises(ConfigError, match=r"http_host is '0\.0\.0\.0'"):
        from_arguments(http_listen=True, http_host="0.0.0.0")
    assert from_arguments(http_listen=False, http_host="0.0.0.0").http_host == "0.0.0.0"
    assert from_arguments(http_listen=True, http_host="0.0.0.0", insecure=True).http_listen
    assert from_arguments(http_listen=True, http_host="::1").http_listen
    with pytest.raises(ConfigError, match=r"web_host is '0\.0\.0\.0'"):
        from_arguments(web=True, web_host="0.0.0.0")
    assert from_arguments(web_host="0.0.0.0").web_host == "0.0.0.0"
    assert from_arguments(web=True, web_host="", web_unix_socket="w").web
    with pytest.raises(ConfigError, match="listen_host is"):
        from_arguments(http_listen=True, listen_host="0.0.0.0")


@table(
    ("settings", "told"),
    [
        ({"web": True, "web_host": ""}, "nothing to listen on"),
        ({"web_unix_socket": "x" * 101}, "web_unix_socket .* is longer than 100 bytes"),
        (
            {"push_allow_network": "10.0.0.0/8 10.0.0.1/8"},
            r"push_allow_network .*10\.0\.0\.1/8 has host bits set",
        ),
        ({"push_port": "443 0"}, "push_port .*'0' is no port from 1 to 65535"),
        ({"push_port": " "}, "push_port .* is empty"),
        ({"push_metrics": "7414"}, "push_metrics .*'7414' is no place to listen at"),
        ({"push_metrics": "localhost:65536"}, "no place to listen at"),
        ({"push_refresh": "10ms"}, "at least 50ms"),
        ({"web_cors_origins": "https://shop.example *"}, r"'\*' is no origin"),
        ({"web_cors_origins": "https://shop.example/"}, "'https://shop.example/' is no origin"),
        ({"web_forwarded_from": "10.0.0.0/8 proxy"}, "'proxy' is no address"),
        ({"web_forwarded_from": "10.0.0.1/8"}, "'10.0.0.1/8' is no address"),
    ],
)
def test_the_http_api(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        from_arguments(**settings)


def test_what_the_http_api_believes() -> None:
    settings = from_arguments(
        web_cors_origins="https://shop.example http://localhost:5173 http://[::1]:80",
        web_forwarded_from="unix 10.0.0.0/8 ::1",
    )
    assert len(settings.web_cors_origins.split()) == 3


@table(
    ("settings", "told"),
    [
        ({"rocketmq_listen": "8081"}, "rocketmq_listen .*'8081' is no place to listen at"),
        ({"rocketmq_advertise": "broker.example"}, "rocketmq_advertise .* is no place"),
        ({"rocketmq_metrics": "localhost:65536"}, "rocketmq_metrics .* is no place"),
        ({"rocketmq_retry_delays": ""}, "rocketmq_retry_delays .* 1 to 255 durations"),
        ({"rocketmq_groups": "billing"}, "'billing' is no group with its attempts"),
        ({"rocketmq_groups": "billing=0"}, "'billing=0' is no group"),
        ({"rocketmq_groups": "billing=3:soon"}, "rocketmq_groups .*soon"),
        ({"rocketmq_groups": "a=3 a=4"}, "a is there twice"),
        ({"rocketmq_invisible_max": "9s"}, "rocketmq_invisible_max .* is below rocketmq_invisible_min"),
        (
            {"rocketmq": True, "rocketmq_max_pending_bytes": "1MiB"},
            "rocketmq_max_pending_bytes .* at least max_frame_bytes",
        ),
        (
            {"rocketmq": True, "rocketmq_listen": "0.0.0.0:8081"},
            "Set tls_certificate and rocketmq_credentials_file, listen on",
        ),
        (
            {"rocketmq": True, "rocketmq_listen": "[::]:8081", "tls_certificate": "c"},
            "Set rocketmq_credentials_file, listen on",
        ),
    ],
)
def test_the_gateway_for_rocketmq(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        from_arguments(**settings)


def test_where_the_gateway_for_rocketmq_may_listen() -> None:
    assert from_arguments(rocketmq_listen="0.0.0.0:8081").rocketmq_listen == "0.0.0.0:8081"
    assert from_arguments(rocketmq=True, rocketmq_listen="0.0.0.0:0", insecure=True).rocketmq
    secure = {"tls_certificate": "c", "rocketmq_credentials_file": "f"}
    assert from_arguments(rocketmq=True, rocketmq_listen="0.0.0.0:0", **secure).rocketmq
    settings = from_arguments(rocketmq=True, data_dir="d")
    assert settings.unix_socket == os.path.join("d", "rocketmq.sock")
    assert from_arguments(rocketmq=True, web=True, data_dir="d").unix_socket == os.path.join("d", "web.sock")
    assert from_arguments(rocketmq=True, unix_socket="own.sock").unix_socket == "own.sock"
