"""An object store in memory that is as bad as one may be: lists that are late, answers that are lost, puts that arrive
after their sender was told that they failed; and users of it that are killed at any of their steps.

Runs of the archive are threads that take turns: which goes on is drawn, so that a seed gives the same course each time.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tickwheel.spark.errors import StorageError
from tickwheel.spark.storage import Found, NewFile


class Killed(BaseException):
    """SIGKILL: nothing of the run is done any more."""


@dataclass(slots=True)
class World:
    """What is in the store, and how bad it is. ``late_steps``: so many steps a new name is missing in lists.
    ``lost_one_in``: of so many creations one answers with an error, though it was done, or is done later."""

    random: Random
    late_steps: int = 0
    lost_one_in: int = 0
    steps: int = 0
    contents: dict[str, bytes] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    modified_ms: dict[str, int] = field(default_factory=dict)
    now_ms: int = 1_000_000
    on_their_way: list[tuple[int, str, bytes]] = field(default_factory=list)

    def step(self) -> None:
        """Time goes on, and what was on its way arrives."""
        self.steps += 1
        self.now_ms += 1_000
        arrived = [one for one in self.on_their_way if one[0] <= self.steps]
        self.on_their_way = [one for one in self.on_their_way if one[0] > self.steps]
        for _, name, content in arrived:
            self.create(name, content)

    def put(self, name: str, content: bytes) -> None:
        if name not in self.contents:
            self.made[name] = self.steps
        self.contents[name] = content
        self.modified_ms[name] = self.now_ms

    def create(self, name: str, content: bytes) -> bool:
        if name not in self.contents:
            self.put(name, content)
        return self.contents[name] == content

    def lose(self, name: str, content: bytes) -> bool:
        """Whether the answer to a creation is lost. Then it is done, or it is done later."""
        if not self.lost_one_in or self.random.randrange(self.lost_one_in):
            return False
        if self.random.random() < 0.5:
            self.create(name, content)
        else:
            self.on_their_way.append((self.steps + self.random.randrange(1, 30), name, content))
        return True

    def is_listed(self, name: str) -> bool:
        return self.steps - self.made[name] >= self.late_steps


class Turns:
    """Threads that take one step at a time, in an order that is drawn."""

    def __init__(self, random: Random) -> None:
        self._random, self._condition = random, threading.Condition()
        self._waiting: set[int] = set()
        self._alive: set[int] = set()
        self._turn: int | None = None

    def run(self, *runs: Callable[[], None]) -> None:
        """Runs all, each in a thread."""
        threads = [
            threading.Thread(target=self._whole, args=(number, work)) for number, work in enumerate(runs)
        ]
        self._alive = set(range(len(runs)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _whole(self, number: int, work: Callable[[], None]) -> None:
        mine.number = number
        try:
            work()
        finally:
            with self._condition:
                self._alive.discard(number)
                self._choose()

    def wait(self, number: int) -> None:
        """Until it is this run's turn."""
        with self._condition:
            self._waiting.add(number)
            self._choose()
            while self._turn != number:
                self._condition.wait()
            self._turn = None
            self._waiting.discard(number)

    def _choose(self) -> None:
        if self._turn is None and self._waiting and self._waiting == self._alive:
            self._turn = self._random.choice(sorted(self._waiting))
            self._condition.notify_all()


mine = threading.local()


class Life:
    """Of one run. ``kill_at``: the step, from 1 on, at which it is killed; ``after``: when that is done."""

    def __init__(
        self, world: World, turn: Callable[[], None] | None = None, kill_at: int = 0, *, after: bool = False
    ) -> None:
        self.world, self.steps = world, 0
        self._turn, self._kill_at, self._after = turn, kill_at, after
        self._is_dead = False

    def do(self, work: Callable[[], Any]) -> Any:
        """A step."""
        if self._is_dead:
            raise Killed
        if self._turn is not None:
            self._turn()
        self.world.step()
        self.steps += 1
        if self.steps == self._kill_at and not self._after:
            self._is_dead = True
            raise Killed
        done = work()
        if self.steps == self._kill_at:
            self._is_dead = True
            raise Killed
        return done


@dataclass(slots=True)
class _NewFile:
    storage: SimulatedFiles
    name: str
    file: io.BytesIO

    def close(self) -> int:
        content = self.file.getvalue()
        self.storage.write(self.name, content)
        return len(content)

    def discard(self) -> None:
        """It was never anywhere."""


@dataclass(frozen=True, slots=True)
class SimulatedFiles:
    """A `Storage` as one run sees it."""

    life: Life

    @property
    def _world(self) -> World:
        return self.life.world

    @property
    def shown(self) -> str:
        return "sim://bucket"

    def shown_name(self, name: str) -> str:
        return f"sim://bucket/{name}"

    def reach(self) -> None:
        self.life.do(lambda: None)

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self.life.do(lambda: self._world.contents.get(name))
        return found

    def write(self, name: str, content: bytes) -> None:
        self.life.do(lambda: self._world.put(name, content))

    def create(self, name: str, content: bytes) -> bool:
        def work() -> bool:
            if self._world.lose(name, content):
                raise StorageError(f"sim://bucket/{name}: the answer was lost.")
            return self._world.create(name, content)

        return bool(self.life.do(work))

    def found(self, folder: str) -> Iterator[Found]:
        def work() -> list[Found]:
            world = self._world
            return [
                Found(name, len(content), world.modified_ms[name])
                for name, content in world.contents.items()
                if (not folder or name.startswith(f"{folder}/")) and world.is_listed(name)
            ]

        yield from self.life.do(work)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.life.do(lambda name=name: self._world.contents.pop(name, None))

    def new_file(self, name: str) -> NewFile:
        return _NewFile(self, name, io.BytesIO())

    def open(self, name: str) -> Any:
        content = self.read(name)
        if content is None:
            raise FileNotFoundError(name)
        return pa.BufferReader(content)

    @contextmanager
    def filled(self, last: str) -> Iterator[Path]:
        with TemporaryDirectory() as folder:
            made = Path(folder)
            yield made
            names = [path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()]
            for name in sorted(names, key=lambda name: (name == last, name)):
                self.write(name, (made / name).read_bytes())
