"""Which epochs the deliveries of a group begin above that is made again under the name of one that is gone.

A client keeps its receipts while its connection is away, and subscribes by name when it is back. So a group that was
made again meanwhile must not take the receipts of the one before for its own: its epochs begin above theirs.
"""

from __future__ import annotations

from typing import Final

#: So many names are kept; of older ones only the highest epoch for the whole topic.
CAPACITY: Final = 1_000


class NameFences:
    """The highest epochs that groups gave out before they were deleted, by topic and name."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], int] = {}
        self._topics: dict[int, int] = {}

    def of(self, topic_id: int, name: str) -> int:
        """Above which epoch a group of this name begins; 0 if there was none, or it gave nothing out."""
        return max(self._names.get((topic_id, name), 0), self._topics.get(topic_id, 0))

    @property
    def highest(self) -> int:
        """The highest of all."""
        return max([0, *self._names.values(), *self._topics.values()])

    def add(self, topic_id: int, name: str, epoch: int) -> None:
        """A group is gone that gave out epochs up to ``epoch``."""
        self._names.pop((topic_id, name), None)
        if not epoch:
            return
        self._names[topic_id, name] = epoch
        if len(self._names) > CAPACITY:
            oldest = next(iter(self._names))
            epoch = self._names.pop(oldest)
            self._topics[oldest[0]] = max(epoch, self._topics.get(oldest[0], 0))

    def drop_topic(self, topic_id: int) -> None:
        """The topic is gone, and no other will have its number."""
        self._topics.pop(topic_id, None)
        for known in [one for one in self._names if one[0] == topic_id]:
            del self._names[known]

    def dump(self) -> tuple[list[tuple[int, str, int]], list[tuple[int, int]]]:
        """Everything, for a checkpoint."""
        return [(*key, epoch) for key, epoch in self._names.items()], list(self._topics.items())

    def load(self, dumped: tuple[list[tuple[int, str, int]], list[tuple[int, int]]]) -> None:
        """What ``dump`` gave."""
        names, topics = dumped
        self._names = {(topic_id, name): epoch for topic_id, name, epoch in names}
        self._topics = dict(topics)
