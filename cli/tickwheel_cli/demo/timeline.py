"""Compressed time: which real millisecond stands for which instant of 2013."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tickwheel_cli.demo.flights import NEW_YORK


@dataclass(frozen=True, slots=True)
class Timeline:
    """At `real_start_ms` it is `story_start_ms` in the story; from then on it runs `speed` times as fast."""

    story_start_ms: int
    real_start_ms: int
    speed: float

    def to_real_ms(self, story_ms: int) -> int:
        """The real time of an instant of the story, in whole milliseconds."""
        return self.real_start_ms + round((story_ms - self.story_start_ms) / self.speed)

    def to_story_ms(self, real_ms: float) -> int:
        """What time it is in the story; before the start, the start."""
        return self.story_start_ms + max(0, round((real_ms - self.real_start_ms) * self.speed))


def local_time(story_ms: int) -> datetime:
    """An instant of the story on the clocks of New York."""
    return datetime.fromtimestamp(story_ms / 1000, NEW_YORK)


def clock(story_ms: int) -> str:
    """`17:05` in New York."""
    return local_time(story_ms).strftime("%H:%M")
