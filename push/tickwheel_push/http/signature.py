"""What proves to a receiver who sent a request: the headers of Standard Webhooks (standardwebhooks.com)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from tickwheel.protocol.targets.signing_secrets import secret_bytes


def webhook_id(message_id: int) -> str:
    """The same in all attempts, so that a receiver knows what it has seen; without a dot, which divides what is
    signed."""
    return f"msg_{message_id}"


def signature(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """One entry for each secret: while secrets change, a receiver may know either. Raises ValueError."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    digests = (hmac.new(secret_bytes(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
