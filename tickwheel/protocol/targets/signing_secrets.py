"""The secrets with which requests to endpoints are signed, as Standard Webhooks writes them: ``whsec_`` and base64.

>>> len(secret_bytes(new_secret()))
32
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Final

PREFIX: Final = "whsec_"
LEAST_BYTES: Final = 24
MOST_BYTES: Final = 64
_NEW_BYTES: Final = 32
_SHOWN_CHARS: Final = 4


def new_secret() -> str:
    """A random one."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def secret_bytes(secret: str) -> bytes:
    """What it is signed with. Raises ValueError, which does not tell the secret."""
    encoded = secret.removeprefix(PREFIX)
    if encoded == secret:
        raise ValueError(f"a secret begins with {PREFIX}")
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"what follows {PREFIX} in a secret is base64") from None
    if not LEAST_BYTES <= len(decoded) <= MOST_BYTES:
        raise ValueError(f"a secret has {len(decoded)} bytes; {LEAST_BYTES} to {MOST_BYTES} are possible")
    return decoded


def shortened(secret: str) -> str:
    """Enough to tell it from another one; no secret any more."""
    return f"{secret[: len(PREFIX) + _SHOWN_CHARS]}…"
