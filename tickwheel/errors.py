"""Every exception of Tickwheel. All have ``code``, ``message``, ``advice`` and ``retryable``."""

from tickwheel.protocol.errors import *  # noqa: F403
