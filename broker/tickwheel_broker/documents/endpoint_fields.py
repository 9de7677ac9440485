"""What an endpoint may say: its fields are merged, checked, and shortened for those who may not see its secrets."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tickwheel.protocol.bodies.endpoints import MAX_ENDPOINT_BYTES, Endpoint
from tickwheel.protocol.bodies.wording import of_shape
from tickwheel.protocol.errors import BadEndpoint
from tickwheel.protocol.targets import signing_secrets, target_headers, target_urls

OWN: Final = frozenset(
    {
        "name",
        "enabled",
        "disabled_reason",
        "disabled_ms",
        "version",
        "created_ms",
        "changed_ms",
        "has_tests",
        "is_shortened",
    }
)
"""The fields that only the broker sets, or that have a request of their own."""


def merged(known: Endpoint | None, name: str, fields: dict[str, Any], now_ms: int) -> Endpoint:
    """An endpoint with other fields, or a new one, as it is to be kept. Raises BadEndpoint."""
    unknown = sorted(set(fields) - (set(Endpoint.__struct_fields__) - OWN))
    if unknown:
        raise BadEndpoint(f"{unknown[0]!r} is no field of an endpoint that can be set.")
    if known is None:
        before: dict[str, Any] = {"name": name, "created_ms": now_ms, "version": 0}
    else:
        before = msgspec.structs.asdict(known)
    before["version"] += 1
    try:
        endpoint = msgspec.convert({**before, "changed_ms": now_ms, **fields}, Endpoint)
    except msgspec.ValidationError as error:
        raise BadEndpoint(f"The endpoint was not understood: {of_shape(Endpoint, error)}") from None
    if known is not None and endpoint.topic != known.topic:
        raise BadEndpoint(
            f"The topic of an endpoint cannot be changed; {name!r} is of {known.topic!r}.",
            advice="Delete it, or make another one for the other topic.",
        )
    if not endpoint.secrets:
        endpoint = msgspec.structs.replace(endpoint, secrets=[signing_secrets.new_secret()])
    check(endpoint)
    return endpoint


def says_the_same(one: Endpoint, other: Endpoint) -> bool:
    """Whether two endpoints differ only in what the broker itself says of them."""
    names = set(Endpoint.__struct_fields__) - OWN
    return all(getattr(one, name) == getattr(other, name) for name in names)


def switched(known: Endpoint, *, enabled: bool, reason: str, now_ms: int) -> Endpoint:
    """Enabled, or disabled for a reason."""
    return msgspec.structs.replace(
        known,
        enabled=enabled,
        disabled_reason="" if enabled else reason,
        disabled_ms=0 if enabled else now_ms,
        version=known.version + 1,
        changed_ms=now_ms,
    )


def check(endpoint: Endpoint) -> None:
    """Raises BadEndpoint with what is wrong."""
    if bool(endpoint.url) == bool(endpoint.allow_urls):
        raise BadEndpoint(
            "An endpoint needs either a url, or allow_urls for messages that name their own URLs.",
        )
    try:
        if endpoint.url:
            target_urls.check_url(endpoint.url)
        for pattern in endpoint.allow_urls:
            target_urls.check_pattern(pattern)
        for secret in endpoint.secrets:
            signing_secrets.secret_bytes(secret)
        target_headers.check_headers(endpoint.headers)
    except ValueError as error:
        raise BadEndpoint(f"The endpoint cannot be used: {error}.") from None
    if len(set(endpoint.secrets)) < len(endpoint.secrets):
        raise BadEndpoint("A secret is given twice.")
    size = len(msgspec.msgpack.encode(endpoint))
    if size > MAX_ENDPOINT_BYTES:
        raise BadEndpoint(f"The endpoint has {size:,} bytes; {MAX_ENDPOINT_BYTES:,} are possible.")


def shortened(endpoint: Endpoint) -> Endpoint:
    """Without secrets, and what may be one: the values of headers, the path of the URL."""
    return msgspec.structs.replace(
        endpoint,
        url=target_urls.shortened(endpoint.url),
        secrets=[signing_secrets.shortened(secret) for secret in endpoint.secrets],
        headers=dict.fromkeys(endpoint.headers, "…"),
        is_shortened=True,
    )
