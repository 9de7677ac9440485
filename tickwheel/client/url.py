"""Where a broker is: ``tickwheel://host:port``, with TLS ``tickwheels://…``, or ``tickwheel+unix:///path/to.sock``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tickwheel.client.checks import shown
from tickwheel.protocol.errors import ConfigError
from tickwheel.protocol.limits import DEFAULT_PORT

URL_VARIABLE = "TICKWHEEL_URL"
DEFAULT_URL = f"tickwheel://127.0.0.1:{DEFAULT_PORT}"
_FORMS = "Use tickwheel://HOST:PORT, tickwheels://HOST:PORT (TLS) or tickwheel+unix:///PATH/TO.sock."


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A broker's TCP port."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tickwheel{'s' if self.tls else ''}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A broker's Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"tickwheel+unix://{self.path}"


Address = TcpAddress | UnixAddress


def default_url() -> str:
    """``TICKWHEEL_URL`` from the environment, or the default address of a broker on this machine."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def parse_url(url: str) -> Address:
    """The address in a URL. Raises ConfigError."""
    if not isinstance(url, str):
        raise ConfigError(f"The address of a broker is {shown(url)}.", advice=_FORMS)
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that do not match, and the like
        raise ConfigError(f"{url!r} is not the address of a broker.", advice=_FORMS) from None
    if parts.username is not None:  # it may be a token, so the address is not repeated
        raise ConfigError(
            "The address of a broker has no user and no password.",
            advice=f"A token is given as token=, token_file=, TICKWHEEL_TOKEN or TICKWHEEL_TOKEN_FILE. {_FORMS}",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"The address {url!r} has parts that mean nothing here.", advice=_FORMS)
    if parts.scheme == "tickwheel+unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"The address {url!r} has no absolute path.", advice=_FORMS)
        return UnixAddress(unquote(parts.path))
    if parts.scheme not in ("tickwheel", "tickwheels") or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigError(f"{url!r} is not the address of a broker.", advice=_FORMS)
    try:
        port = parts.port
    except ValueError:
        raise ConfigError(f"The address {url!r} has a bad port.", advice=_FORMS) from None
    return TcpAddress(
        parts.hostname, DEFAULT_PORT if port is None else port, tls=parts.scheme == "tickwheels"
    )
