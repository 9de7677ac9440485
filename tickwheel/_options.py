"""The options of a client, by name and type, for whatever hands them on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from tickwheel._session import Dial


class ClientOptions(TypedDict, total=False):
    """Those of ``tickwheel.Client``, which says what they mean."""

    name: str | None
    timeout: float
    connect_timeout: float
    keepalive: float
    max_pending_bytes: int
    auto_key: bool
    ca_file: str | os.PathLike[str] | None
    certificate: str | os.PathLike[str] | None
    key: str | os.PathLike[str] | None
    token: str | None
    token_file: str | os.PathLike[str] | None
    plain_token: bool
    tracing: bool | TracerProvider
    dial: Dial | None
