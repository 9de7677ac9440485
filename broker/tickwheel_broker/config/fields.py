"""The table of settings, read: what the configuration file, the environment, the flags and the help pages need to know
of each, and which of them other commands than `serve` take."""

from __future__ import annotations

from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from tickwheel_broker.config.settings import Settings

PUSH_SECTION = "Push"
"""Its settings are of no process but `tickwheel push`."""

_SECTIONS = {
    "listen_host": "Listening",
    "tls_certificate": "Security",
    "data_dir": "Storage",
    "max_body_bytes": "Limits",
    "ack_wait_ms": "Delivery",
    "handshake_timeout_ms": "Time-outs",
    "cluster": "Cluster",
    "http_listen": "Monitoring",
    "web": "HTTP API",
    "push_allow_network": PUSH_SECTION,
    "rocketmq": "RocketMQ",
    "flight": "Arrow Flight",
    "log_level": "Logging",
}
"""By the attribute with which each begins."""


class SettingField(msgspec.Struct, frozen=True):
    """What the configuration file, the environment, the flags and the help pages need to know of one
    setting.
    """

    name: str
    attribute: str
    section: str
    unit: Literal["duration", "size", "count", "plain"]
    help_text: str
    default: int | str | bool
    choices: tuple[str, ...]
    annotation: Any

    @property
    def is_switch(self) -> bool:
        """Whether the setting is true or false."""
        return isinstance(self.default, bool)

    @property
    def variable(self) -> str:
        """The environment variable of this setting."""
        return f"TICKWHEEL_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command-line flag of this setting."""
        return "--" + self.name.replace("_", "-")


def _fields() -> dict[str, SettingField]:
    hints = msgspec.inspect.type_info(Settings)
    assert isinstance(hints, msgspec.inspect.StructType)
    annotations = get_type_hints(Settings, include_extras=True)
    found: dict[str, SettingField] = {}
    section = ""
    for field in hints.fields:
        section = _SECTIONS.get(field.name, section)
        annotated = annotations[field.name]
        meta: Meta = annotated.__metadata__[0]
        assert meta.extra is not None
        assert meta.description is not None
        unit = meta.extra["unit"]
        name = field.name.removesuffix("_ms") if unit == "duration" else field.name
        choices = getattr(annotated.__origin__, "__args__", ())
        found[name] = SettingField(
            name=name,
            attribute=field.name,
            section=section,
            unit=unit,
            help_text=meta.description,
            default=field.default,
            choices=choices,
            annotation=annotated,
        )
    return found


FIELDS: dict[str, SettingField] = _fields()
"""All settings by their outward name, in the order in which they are documented."""

_ALSO_OF_ROCKETMQ = (
    "insecure",
    "tls_certificate",
    "tls_key",
    "max_body_bytes",
    "max_frame_bytes",
    "auto_create_topics",
    "log_level",
    "log_format",
)
_ALSO_OF_FLIGHT = (
    "data_dir",
    "max_staging_bytes",
    "insecure",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "log_level",
    "log_format",
)
_ALSO_OF_WEB = ("insecure", "tls_certificate", "tls_key", "tls_client_ca", "log_level", "log_format")


_NOT_OF_A_WORKER = ("rocketmq_listen", "rocketmq_metrics", "rocketmq_niceness", "rocketmq_workers")


def push_settings() -> list[str]:
    """The settings that `tickwheel push` takes, and nothing else."""
    return [name for name, field in FIELDS.items() if field.section == PUSH_SECTION]


def web_flags() -> dict[str, str]:
    """The settings that `tickwheel web` takes, and its flags for them: `--host` is `web_host`."""
    return {
        name: field.flag.replace("--web-", "--")
        for name, field in FIELDS.items()
        if name.startswith("web_") or name in _ALSO_OF_WEB
    }


def rocketmq_worker_flags() -> dict[str, str]:
    """Those of them that count for each worker of a gateway, and not for all together."""
    return {name: flag for name, flag in rocketmq_flags().items() if name not in _NOT_OF_A_WORKER}


def rocketmq_flags() -> dict[str, str]:
    """The settings that `tickwheel gateway` takes, and its flags for them: `--listen` is `rocketmq_listen`."""
    return {
        name: field.flag.replace("--rocketmq-", "--")
        for name, field in FIELDS.items()
        if name.startswith("rocketmq_") or name in _ALSO_OF_ROCKETMQ
    }


def flight_flags() -> dict[str, str]:
    """The settings that `tickwheel flight` takes, and its flags for them: `--listen` is `flight_listen`."""
    return {
        name: field.flag.replace("--flight-", "--")
        for name, field in FIELDS.items()
        if (name.startswith("flight_") and name != "flight_advertise") or name in _ALSO_OF_FLIGHT
    }
