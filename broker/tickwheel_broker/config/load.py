"""Where the settings come from: defaults < TOML file < environment < flags, each value with its origin.

Nothing is guessed: an unknown key is refused with the nearest known one, and every refusal names the file,
variable or flag that it came from.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tickwheel.protocol.errors import ConfigError
from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel.protocol.limits import MAX_HEADERS_BYTES, MAX_KEY_BYTES
from tickwheel.protocol.units import (
    delay_levels_ms,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_size_bytes,
)
from tickwheel_broker.config.cluster_url import parse_cluster_url
from tickwheel_broker.config.fields import FIELDS, SettingField
from tickwheel_broker.config.flight import flight_conflicts, is_flight_exposed
from tickwheel_broker.config.places import is_loopback, is_port, place_of
from tickwheel_broker.config.rocketmq import rocketmq_conflicts
from tickwheel_broker.config.settings import KIB, Settings

ENVIRONMENT_PREFIX = "TICKWHEEL_"
_TYPING_MISTAKE = 0.75
"""A variable this similar to one of ours (1 is equal) is taken for a typing mistake and refused.

Others with our prefix are left alone: the client's (`_OF_CLIENTS`), and what Kubernetes sets in every container
when a service is called `tickwheel` (TICKWHEEL_SERVICE_HOST, TICKWHEEL_PORT, …).
"""

_OF_CLIENTS = frozenset({"url", "token", "token_file", "plain_token", "ca", "certificate", "key"})

MAX_UNIX_PATH_BYTES = 100
_SOCKETS = {"web": "web.sock", "rocketmq": "rocketmq.sock", "flight": "flight.sock"}
"""By which processes beside the broker reach it, by the setting that starts them."""
_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?")
_SWITCH_TEXTS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_LARGEST_ENVELOPE_BYTES = HEADER_BYTES + 64 + MAX_KEY_BYTES + MAX_HEADERS_BYTES

_LOG_MARGIN_BYTES = 8 << 20
"""What a log segment needs beside the largest frame: record heads, and the reserve for acks on a full disk."""


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and for each outward name where its value came from."""

    settings: Settings
    origins: dict[str, str]


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read all sources and validate them together.

    `environment` defaults to the process's. `flags` maps outward names (`ack_wait`) to values; None means
    "not given". Raises ConfigError, which names the origin of the bad value.
    """
    reading = _Reading()
    if file is not None:
        reading.take(_read_file(file), f"{file}")
    reading.take_environment(os.environ if environment is None else environment)
    for name, value in (flags or {}).items():
        if value is not None and reading.knows(name, "flags"):
            reading.set(name, value, FIELDS[name].flag)
    return reading.result()


def from_arguments(**arguments: Any) -> Settings:
    """Settings from Python keyword arguments by their outward names, without file or environment."""
    reading = _Reading()
    for name, value in arguments.items():
        if reading.knows(name, "keyword arguments"):
            reading.set(name, value, f"{name}=")
    return reading.result().settings


class _Reading:
    """Values from all sources; what is wrong with them is told at once."""

    def __init__(self) -> None:
        self._values: dict[str, int | str | bool] = {}
        self._origins = dict.fromkeys(FIELDS, "default")
        self._problems: list[str] = []

    def take(self, table: Mapping[str, Any], where: str) -> None:
        for name, value in table.items():
            if self.knows(name, where):
                self.set(name, value, f"{where}: {name}")

    def take_environment(self, environment: Mapping[str, str]) -> None:
        for variable, text in environment.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name in FIELDS:
                self.set(name, text, variable)
                continue
            if name in _OF_CLIENTS:
                continue
            near = difflib.get_close_matches(name, list(FIELDS), n=1, cutoff=_TYPING_MISTAKE)
            if near:
                meant = FIELDS[near[0]].variable
                self._problems.append(f"environment: unknown variable {variable}; did you mean {meant}?")

    def knows(self, name: str, where: str) -> bool:
        if name not in FIELDS:
            self._problems.append(f"{where}: unknown setting {name!r}{_did_you_mean(name, FIELDS)}")
        return name in FIELDS

    def set(self, name: str, raw: Any, origin: str) -> None:
        field = FIELDS[name]
        try:
            self._values[field.attribute] = msgspec.convert(_plain_value(field, raw), field.annotation)
        except (ValueError, msgspec.ValidationError) as error:
            self._problems.append(f"{origin}: {_explain(field, raw, error)}")
        self._origins[name] = origin

    def result(self) -> Loaded:
        """Raises ConfigError with all problems; whether values fit together is asked when each is fine by itself."""
        settings = Settings(**self._values)  # type: ignore[arg-type]
        beside = next((name for name in _SOCKETS if getattr(settings, name)), "")
        if beside and not settings.unix_socket:
            name = _SOCKETS[beside]
            path = os.path.join(settings.data_dir, name)
            settings = msgspec.structs.replace(settings, unix_socket=path)
            self._origins["unix_socket"] = f"{name} in data_dir, for {beside}"
        problems = self._problems or list(_conflicts(settings, self._origins))
        if problems:
            raise ConfigError("\n".join(problems))
        return Loaded(settings, self._origins)


def _conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Values that are each fine but not with one another."""
    if not settings.data_dir:
        yield f"data_dir ({origins['data_dir']}) is empty: name a directory"
    if not settings.listen_tcp and not settings.unix_socket:
        yield (
            f"listen_tcp is false ({origins['listen_tcp']}) and unix_socket is empty: nothing to listen on"
        )
    name = exposed_host(settings)
    if name and not settings.insecure and not settings.tls_certificate:
        yield (
            f"{name} is {getattr(settings, name)!r} ({origins[name]}), which other machines "
            "may reach, and there is no TLS. Set tls_certificate (and tls_key), listen on 127.0.0.1, or set "
            "insecure = true"
        )
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name) and not settings.tls_certificate:
            yield f"{name} is set ({origins[name]}), but not tls_certificate: without one there is no TLS"
    yield from _cluster_conflicts(settings, origins)
    for name in ("unix_socket", "web_unix_socket"):
        if len(os.fsencode(getattr(settings, name))) > MAX_UNIX_PATH_BYTES:
            yield (
                f"{name} ({origins[name]}) is longer than {MAX_UNIX_PATH_BYTES} bytes: "
                "the system cannot bind such a path"
            )
    yield from _web_conflicts(settings, origins)
    yield from _push_conflicts(settings, origins)
    yield from rocketmq_conflicts(settings, origins)
    yield from flight_conflicts(settings, origins)
    try:
        delay_levels_ms(settings.delay_levels)
    except ValueError as error:
        yield f"delay_levels ({origins['delay_levels']}): {error}"
    if settings.max_backoff_ms < settings.min_backoff_ms:
        yield f"max_backoff ({origins['max_backoff']}) is below min_backoff ({origins['min_backoff']})"
    if settings.max_backoff_ms < settings.ack_wait_ms:
        yield f"max_backoff ({origins['max_backoff']}) is below ack_wait ({origins['ack_wait']})"
    needed_bytes = settings.max_body_bytes + _LARGEST_ENVELOPE_BYTES
    if settings.max_frame_bytes < needed_bytes:
        yield (
            f"max_frame_bytes ({origins['max_frame_bytes']}) must be at least {needed_bytes} to hold one "
            f"message of max_body_bytes ({origins['max_body_bytes']})"
        )
    if settings.max_receive_bytes < settings.max_frame_bytes:
        yield (
            f"max_receive_bytes ({origins['max_receive_bytes']}) must be at least max_frame_bytes "
            f"({origins['max_frame_bytes']}), so that one such frame can arrive"
        )
    staging_bytes = settings.max_frame_bytes + _LOG_MARGIN_BYTES
    if settings.segment_bytes < staging_bytes:
        yield (
            f"segment_bytes ({origins['segment_bytes']}) must be at least {staging_bytes} to hold a frame of "
            f"max_frame_bytes ({origins['max_frame_bytes']})"
        )


def limits_for(largest_frame_bytes: int) -> dict[str, int]:
    """What must be set so that a broker starts on a directory whose segments have room for such a frame; nothing where
    the defaults do."""
    largest, defaults = largest_frame_bytes // KIB * KIB, Settings()
    if largest >= defaults.max_frame_bytes:
        return {}
    body_bytes = min(defaults.max_body_bytes, (largest - _LARGEST_ENVELOPE_BYTES) // KIB * KIB)
    return {"max_frame_bytes": largest, "max_body_bytes": max(0, body_bytes)}


def limits_for_segments(segment_bytes: int) -> dict[str, int]:
    """What must be set beside `segment_bytes` for a new log; nothing where the defaults do. Raises ConfigError."""
    least_bytes = _LOG_MARGIN_BYTES + (1 << 20)
    if segment_bytes < least_bytes:
        raise ConfigError(
            f"segment_bytes is {segment_bytes}, and must be at least {least_bytes}: frames and the reserve for acks "
            "need room in a segment"
        )
    return limits_for(segment_bytes - _LOG_MARGIN_BYTES)


def _web_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    if settings.web and not settings.web_host and not settings.web_unix_socket:
        yield (
            f"web_host ({origins['web_host']}) and web_unix_socket ({origins['web_unix_socket']}) are empty: "
            "nothing to listen on"
        )
    for origin in settings.web_cors_origins.split():
        if _ORIGIN.fullmatch(origin) is None:
            yield (
                f"web_cors_origins ({origins['web_cors_origins']}): {origin!r} is no origin; write it like "
                "https://shop.example or http://localhost:5173, without a path; there is no *"
            )
    trusted = [f"web_trusted_{name}" for name in ("header", "from", "users")]
    if len({bool(getattr(settings, name)) for name in trusted}) > 1:
        yield (
            "some of "
            + ", ".join(f"{name} ({origins[name]})" for name in trusted)
            + " are given, and some are not: give the header, of whom it is believed, and the file with the tokens"
        )
    for name in ("web_forwarded_from", "web_trusted_from"):
        for network in getattr(settings, name).split():
            try:
                network == "unix" or ipaddress.ip_network(network)
            except ValueError:
                yield (
                    f"{name} ({origins[name]}): {network!r} is no address, no network such as 10.0.0.0/8, and not unix"
                )


def _push_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    for network in settings.push_allow_network.split():
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"push_allow_network ({origins['push_allow_network']}): {error}"
    for port in settings.push_port.split():
        if not is_port(port):
            yield f"push_port ({origins['push_port']}): {port!r} is no port from 1 to 65535"
    if not settings.push_port.split():
        yield f"push_port ({origins['push_port']}) is empty: nothing could be called"
    try:
        place_of(settings.push_metrics or "localhost:0")
    except ValueError as error:
        yield f"push_metrics ({origins['push_metrics']}): {error}"


def _cluster_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    if not settings.cluster:
        for name in ("node", "advertised_url", "kafka_config"):
            if getattr(settings, name):
                yield f"{name} is set ({origins[name]}), but not cluster: a broker of its own is no node"
        return
    try:
        parse_cluster_url(settings.cluster)
    except ValueError as error:
        yield f"cluster ({origins['cluster']}): {error}"
    if not settings.node:
        yield f"cluster is set ({origins['cluster']}), but not node: give each node a number of its own, from 1"
    if settings.durability != "always":
        yield (
            f"durability is {settings.durability!r} ({origins['durability']}), and in a cluster it is always 'always': "
            "what is confirmed is on several machines"
        )


def exposed_host(settings: Settings) -> str:
    """The setting by which other machines may reach the broker, such as `listen_host`; empty: they may not."""
    if settings.listen_tcp and not is_loopback(settings.listen_host):
        return "listen_host"
    if settings.http_listen and not is_loopback(settings.http_host):
        return "http_host"
    if is_flight_exposed(settings):
        return "flight_listen"
    return "web_host" if settings.web and settings.web_host and not is_loopback(settings.web_host) else ""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and brackets as deep
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; `tickwheel config show` lists all settings"


def _plain_value(field: SettingField, raw: Any) -> Any:
    """The value in the setting's own unit. Texts come from files, variables and flags alike."""
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, str) and "\0" in raw:
        raise ValueError("a text with a null character is of no use here")
    if not isinstance(raw, str):
        if field.unit == "duration":
            raise ValueError("a duration needs its unit; write for example '30s' or '250ms'")
        return raw
    if field.unit == "duration":
        return parse_duration_ms(raw)
    if field.unit == "size":
        return parse_size_bytes(raw)
    if field.unit == "count":
        return int(raw)
    if field.is_switch:
        if raw.lower() not in _SWITCH_TEXTS:
            raise ValueError(f"{raw!r} is neither true nor false")
        return _SWITCH_TEXTS[raw.lower()]
    return raw


def _passed_limit(field: SettingField, value: Any) -> str:
    """`at most 365d`; empty when the value is within its limits, or no number."""
    meta = field.annotation.__metadata__[0]
    if type(value) is not int or meta.ge is None:
        return ""
    text = {"duration": format_duration, "size": format_size}.get(field.unit, str)
    if value < meta.ge:
        return f"at least {text(meta.ge)}"
    return f"at most {text(meta.le)}" if value > meta.le else ""


def _explain(field: SettingField, raw: Any, error: Exception) -> str:
    if field.choices:
        return f"{raw!r} is not one of {', '.join(field.choices)}"
    if isinstance(error, msgspec.ValidationError):
        limit = _passed_limit(field, _plain_value(field, raw))
        if limit:
            return f"{raw!r} is not possible: {limit}"
        return f"{raw!r} is not possible: {str(error)[0].lower()}{str(error)[1:]}"
    if field.unit == "count":
        return f"{raw!r} is not a whole number"
    return str(error)
