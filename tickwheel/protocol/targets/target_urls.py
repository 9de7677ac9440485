"""The URLs that may be called, as far as their text tells: checked where they are set, before anything resolves them.

Which addresses a name leads to, and whether those may be reached, is judged at each call by the process that makes it.

>>> check_url("https://shop.example/hooks?from=tickwheel")
>>> matches("https://*.shop.example/hooks/*", "https://eu.shop.example/hooks/7")
True
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

MAX_URL_CHARS: Final = 2_048

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_PRINTED: Final = re.compile(r"[!-~]+")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_DOTS: Final = re.compile(r"(?:^|/|%2f|%5c)(?:\.|%2e){1,2}(?:/|%2f|%5c|$)", re.IGNORECASE)
_ANY_HOST: Final = "*."


def check_url(url: str) -> None:
    """Raises ValueError with what is wrong."""
    parts = _split(url)
    _check_host(parts.hostname or "", url)


def check_pattern(pattern: str) -> None:
    """A URL whose host may begin with ``*.`` and whose path may end with ``*``. Raises ValueError."""
    parts = _split(pattern)
    host, path = parts.hostname or "", parts.path
    _check_host(host.removeprefix(_ANY_HOST), pattern)
    if "*" in path[:-1] or parts.query:
        raise ValueError(
            f"{_shown(pattern)} has a * inside its path, or a query; a pattern's path may end with *"
        )
    if path.endswith("*") and not path.endswith("/*"):
        raise ValueError(f"{_shown(pattern)} ends inside a part of the path; end it with /*")


def matches(pattern: str, url: str) -> bool:
    """Whether a checked pattern allows a URL. Scheme, host and port are the same, and the path is, or begins so; the
    query does not count. Nothing is allowed that `check_url` refuses."""
    try:
        check_url(url)
    except ValueError:
        return False
    wanted, given = urlsplit(pattern), urlsplit(url)
    if (wanted.scheme, _port(wanted)) != (given.scheme, _port(given)):
        return False
    host, given_host = wanted.hostname or "", given.hostname or ""
    if host.startswith(_ANY_HOST):
        if not given_host.endswith(host[1:]):
            return False
    elif host != given_host:
        return False
    path, given_path = wanted.path or "/", given.path or "/"
    return given_path.startswith(path[:-1]) if path.endswith("*") else given_path == path


def shortened(url: str) -> str:
    """Without what may be secret in it: its path and its query."""
    if not url:
        return ""
    parts = urlsplit(url)
    rest = "/…" if parts.path not in ("", "/") or parts.query else parts.path
    return f"{parts.scheme}://{parts.netloc}{rest}"


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"a URL of {len(url):,} characters is too long; {MAX_URL_CHARS:,} are possible")
    if not _PRINTED.fullmatch(url) or "\\" in url:
        raise ValueError(
            f"{_shown(url)} has characters that a URL cannot have; write them as %XX, a host as xn--…"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{_shown(url)} is no URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{_shown(url)} does not begin with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("a URL with a user or a password is not taken; use a header")
    if parts.fragment or url.endswith("#"):
        raise ValueError(f"{_shown(url)} has a fragment, which no server is sent")
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"{_shown(url)} has no port behind its colon")
    if _DOTS.search(parts.path):
        raise ValueError(f"{_shown(url)} has . or .. in its path; write where it leads")
    return parts


def _check_host(host: str, url: str) -> None:
    if (
        ":" in host
        or host.rpartition(".")[2].isdecimal()
        or re.fullmatch(r"0x[0-9a-f]*", host.rpartition(".")[2])
    ):
        _check_address(host, url)
    elif len(host) > 253 or not _HOST.fullmatch(host):
        raise ValueError(f"{_shown(url)} has no host, or one that is no name")


def _check_address(host: str, url: str) -> None:
    """One that can only be a mistake or an attack is refused; which others may be reached is settled elsewhere."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            f"{_shown(url)} has a number for a host that is no address as it is usually written"
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    is_reserved = isinstance(address, ipaddress.IPv4Address) and address.is_reserved
    if address.is_link_local or address.is_multicast or address.is_unspecified or is_reserved:
        raise ValueError(f"{_shown(url)} has an address that cannot be called")


def _port(parts: SplitResult) -> int:
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def _shown(url: str) -> str:
    return repr(url if len(url) <= 80 else f"{url[:79]}…")
