"""Where something listens: a host and a port."""

from __future__ import annotations

import ipaddress


def place_of(text: str) -> tuple[str, int]:
    """Host and port; 0: any. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not (port == "0" or is_port(port)):
        raise ValueError(f"{text!r} is no place to listen at; write it like 127.0.0.1:7414")
    return host, int(port)


def _is_host(text: str) -> bool:
    """Whether it may be a name or an address, and is no URL."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return bool(text) and "/" not in text


def is_port(text: str) -> bool:
    """From 1 to 65535."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65_535


def is_loopback(host: str) -> bool:
    """Whether other machines cannot reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
