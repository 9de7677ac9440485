"""The comment of a Vitess message table: the settings of a topic, or of a table in a database.

>>> parse_vitess("vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,"
...              "vt_cache_size=10000,vt_poller_interval=30")["ack_wait_ms"]
30000
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tickwheel.protocol.errors import BadTopicSettings
from tickwheel.protocol.units import seconds_ms

_MANDATORY: Final = ("vt_ack_wait", "vt_purge_after", "vt_batch_size", "vt_cache_size", "vt_poller_interval")
_SECONDS: Final = {
    "vt_ack_wait": "ack_wait_ms",
    "vt_purge_after": "purge_after_ms",
    "vt_min_backoff": "min_backoff_ms",
    "vt_max_backoff": "max_backoff_ms",
    "vt_poller_interval": "poller_interval_ms",
}
_COUNTS: Final = {"vt_batch_size": "batch_size", "vt_cache_size": "cache_size"}
_MOST_DIGITS: Final = 100
_ADVICE: Final = "See docs/how-to/topic-settings.md for the keys that are known."


def parse_vitess(comment: str) -> dict[str, Any]:
    """The settings (wire names) that a comment means. Raises BadTopicSettings, and then none of them counts.

    The five keys that Vitess demands are demanded here; seconds may have a fraction; ``vt_max_backoff`` 0 or absent
    means no limit.
    """
    given = parse_pairs(comment, ("vitess_message",))
    if "vt_message_cols" in given:
        raise BadTopicSettings(
            "vt_message_cols is for tables in a database.",
            advice="Leave it out: a topic's messages have no columns.",
        )
    settings = settings_of(given)
    del settings["poller_interval_ms"]  # checked as Vitess does; nothing polls here
    return settings


def parse_pairs(comment: str, heads: tuple[str, ...]) -> dict[str, str]:
    """The keys and values of a comment that begins with one of ``heads``. Raises BadTopicSettings."""
    if not isinstance(comment, str):
        raise BadTopicSettings(f"The comment is a {type(comment).__name__}.", advice="Use a text. " + _ADVICE)
    head, *pairs = [part.strip() for part in comment.split(",")]
    if head not in heads:
        raise BadTopicSettings(f"The comment does not begin with '{heads[0]},'.", advice=_ADVICE)
    given = dict(_pair(pair) for pair in pairs if pair)
    missing = [key for key in _MANDATORY if key not in given]
    if missing:
        raise BadTopicSettings(f"The comment lacks {', '.join(missing)}.", advice=_ADVICE)
    return given


def settings_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Names of ours and their values, for all keys but ``vt_message_cols``. Raises BadTopicSettings."""
    settings: dict[str, Any] = {"max_backoff_ms": 0}
    settings.update(_setting(key, text) for key, text in given.items() if key != "vt_message_cols")
    return settings


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadTopicSettings(f"{text!r} is not of the form key=value.", advice=_ADVICE)
    return key.strip(), value.strip()


def _setting(key: str, text: str) -> tuple[str, int]:
    if key in _SECONDS:
        return _SECONDS[key], _milliseconds(key, text)
    if key in _COUNTS:
        if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) == 0:
            raise BadTopicSettings(
                f"{key}={text[:_MOST_DIGITS]} is not a whole number above 0.", advice=_ADVICE
            )
        return _COUNTS[key], int(text)
    raise BadTopicSettings(f"{key!r} is no key of a Vitess message table.", advice=_ADVICE)


def _milliseconds(key: str, text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    lowest = 0.0 if key in ("vt_purge_after", "vt_max_backoff") else 0.001
    if not lowest <= seconds < math.inf:
        raise BadTopicSettings(f"{key}={text} is not a number of seconds.", advice=_ADVICE)
    return seconds_ms(seconds)
