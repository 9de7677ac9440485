"""Which of the messages that are due go first: pure, no SQL.

Lower priority numbers go first, and inside of a priority the longest waiting. So that a high number never starves, one
of ``RESERVED_SHARE`` deliveries goes to the longest waiting message of any priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

RESERVED_SHARE: Final = 8
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_FIRST_ASIDE_S: Final = 60.0
_LONGEST_ASIDE_S: Final = 3_600.0
_MOST_ASIDE: Final = 10_000


class Candidate(NamedTuple):
    """A message that was due when the table was looked at."""

    id: Hashable
    priority: int
    time_next: int
    epoch: int


class Candidates:
    """Messages that are due, in the order in which they are to be delivered."""

    def __init__(self, turn: int = 0) -> None:
        """``turn``: how many were taken before; a caller that takes only a few at a time begins anywhere."""
        self._lanes: dict[int, deque[Candidate]] = {}
        self._cut: frozenset[int] = frozenset()
        self._count = 0
        self._turn = turn

    def __len__(self) -> int:
        return self._count

    def replace(self, found: Iterable[Candidate], cut: Collection[int] = ()) -> None:
        """Forgets what was here: the table knows better. ``found``: each priority's ordered by time. ``cut``: the
        priorities of which the table has more; what comes after those is not taken before it was looked up again."""
        self._lanes, self._count, self._cut = {}, 0, frozenset(cut)
        for one in found:
            self._lanes.setdefault(one.priority, deque()).append(one)
            self._count += 1

    def take(self, limit: int) -> list[Candidate]:
        """Removes and returns the next ``limit``, or as many as are known to be next."""
        taken: list[Candidate] = []
        while len(taken) < limit and self._count:
            taken.append(self._next())
        return taken

    def _next(self) -> Candidate:
        self._turn += 1
        if self._turn % RESERVED_SHARE == 0 and len(self._lanes) > 1:
            priority = min(self._lanes, key=lambda one: (self._lanes[one][0].time_next, one))
        else:
            priority = min(self._lanes)
        lane = self._lanes[priority]
        chosen = lane.popleft()
        self._count -= 1
        if not lane:
            del self._lanes[priority]
            if priority in self._cut:
                self._lanes, self._count = {}, 0
        return chosen


class PassedOver:
    """Candidates that could not be had, because others have locked them. Each is left out for a while that
    doubles, so that those behind them have their turn."""

    def __init__(self) -> None:
        self._until: dict[Candidate, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, missed: Iterable[Candidate], now_s: float) -> None:
        """These could not be had."""
        for one in missed:
            pause_s = min(2 * self._until.get(one, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
            self._until[one] = (now_s + pause_s, pause_s)

    def rest(self, found: Collection[Candidate], now_s: float) -> list[Candidate]:
        """What is to be tried now. Those that were not tried yet come first, else the others would take all turns of
        their priority. Forgets those that were not found again: they have changed."""
        self._until = {one: self._until[one] for one in found if one in self._until}
        untried = [one for one in found if one not in self._until]
        return untried + [one for one, (until_s, _) in self._until.items() if until_s <= now_s]

    def clear(self) -> None:
        """All may be tried again."""
        self._until.clear()


class SetAside:
    """Messages that the database refuses to have claimed (or deleted), whatever else is with them: a constraint or a
    trigger of the user's. Each is tried again seldom, and logged once."""

    def __init__(self) -> None:
        self._until: dict[Hashable, tuple[float, float]] = {}
        self._logged: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, id_: Hashable, now_s: float) -> None:
        """This one was refused."""
        pause_s = min(2 * self._until.pop(id_, (0.0, _FIRST_ASIDE_S / 2))[1], _LONGEST_ASIDE_S)
        self._until[id_] = (now_s + pause_s, pause_s)
        if len(self._until) > _MOST_ASIDE:
            self._until.pop(next(iter(self._until)), None)

    def is_news(self, id_: Hashable) -> bool:
        """Whether nothing was said about this one yet."""
        if id_ in self._logged:
            return False
        self._logged[id_] = None
        if len(self._logged) > _MOST_ASIDE:
            self._logged.pop(next(iter(self._logged)), None)
        return True

    def remove(self, ids: Iterable[Hashable]) -> None:
        """These were claimed after all."""
        if self._until:
            for one in ids:
                self._until.pop(one, None)

    def waiting(self, now_s: float) -> list[Hashable]:
        """Those that are not to be tried now."""
        return [one for one, (until_s, _) in self._until.items() if until_s > now_s]

    def rest(self, found: Sequence[Candidate], now_s: float) -> Sequence[Candidate]:
        """What is to be tried now."""
        return [one for one in found if self._until.get(one.id, (0.0, 0.0))[0] <= now_s]


def choose(
    lanes: Mapping[int, Sequence[Candidate]], oldest: int, limit: int, passed: int = 0
) -> tuple[list[Candidate], frozenset[int]]:
    """About ``limit`` of what was read, and the priorities of which there may be more.

    ``lanes``: priorities in order, each with up to ``limit`` messages. Of ``oldest``, the one with the longest waiting
    message, the reserved share is kept, however many are before it; and as many more as were ``passed`` over, which may
    all be of that priority.
    """
    chosen: list[Candidate] = []
    cut: set[int] = set()
    reserved = list(lanes[oldest][: max(limit // RESERVED_SHARE, 1) + passed])
    for priority, lane in lanes.items():
        room = limit - len(chosen)
        if priority < oldest:
            room = max(room - len(reserved), 0 if chosen else 1)
        if room <= 0:
            break
        chosen += lane[:room]
        if len(lane) >= room:
            cut.add(priority)
    if oldest not in {one.priority for one in chosen}:
        chosen += reserved
    return chosen, frozenset(cut)
