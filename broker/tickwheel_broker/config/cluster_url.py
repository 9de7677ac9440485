"""Where a cluster is: `kafka://host:9092,host2:9092/name`; and the file of what its Kafka client is told besides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tickwheel.protocol.errors import ConfigError

_FORM: Final = re.compile(r"kafka://(?P<servers>[^/\s]+)/(?P<name>[^/\s]*)")
_SERVER: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:,@?#\s]+):(?P<port>\d{1,5})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

EXAMPLE: Final = "kafka://host:9092,host2:9092/name"


class ClusterUrl(NamedTuple):
    """`servers`: as Kafka's `bootstrap.servers`."""

    servers: str
    name: str

    @property
    def topic(self) -> str:
        """The Kafka topic of the cluster's log."""
        return f"tickwheel.{self.name}"


def parse_cluster_url(text: str) -> ClusterUrl:
    """Raises ValueError, which says what is wrong."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no address of a cluster; write it like {EXAMPLE}")
    for server in found["servers"].split(","):
        address = _SERVER.fullmatch(server)
        if address is None or not 0 < int(address["port"]) < 65_536:
            raise ValueError(f"{server!r} in {text!r} is no host:port of a Kafka broker")
    if _NAME.fullmatch(found["name"]) is None:
        raise ValueError(
            f"{found['name']!r} is no name of a cluster: letters, digits and . _ - (at most 100), as in {EXAMPLE}"
        )
    return ClusterUrl(found["servers"], found["name"])


def kafka_options(path: str) -> dict[str, str]:
    """Settings of librdkafka from a file: name=value in each line, # for remarks. An empty path: none. Raises
    ConfigError."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"kafka_config: {path} cannot be read: {reason}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"kafka_config: line {number} of {path} is not name=value")
        found[name.strip()] = value.strip()
    return found
