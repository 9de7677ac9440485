"""Several messages of an ordering key at a time, against a model that says exactly which each request is given: as long
as one of a key is out, none; otherwise those that follow each other from the first that is not done, up to one that
waits."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered
from tests.support.run.profile import examples
from timerlog.commitlog.records import Outbound
from timerlog.engine.deliver import AsAnswer
from timerlog.errors import DiskFull
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

KEYS: Final = (b"ada", b"bob")
READY, OUT, WAITING, DONE = range(4)
STEPS: Final = 60


@dataclass
class Known:
    """A message as the group has it."""

    key: bytes
    state: int = READY
    epoch: int = 0
    until_ms: int = 0


class Episode:
    """A store, the model beside it, and what happens to both."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.random, self.now_ms = directory, random.Random(seed), NOW_MS
        self.store = Store.open(directory, SMALL, NOW_MS)
        self.topic = self.store.topics.create("t", {}, 0, NOW_MS).topic_id
        self.group = self.store.groups.open(self.topic, "g", NOW_MS)
        self.known: dict[int, Known] = {}
        self.next_id = 1
        #: Keys of which a message was called for again.
        self.loose: set[bytes] = set()

    def send(self) -> None:
        keys = self.random.choices(KEYS, k=self.random.randint(1, 4))
        self.store.commit.write_internal(
            self.topic, [Outbound(b"x", order=key) for key in keys], [], self.now_ms
        )
        pump(self.store, self.now_ms)
        for key in keys:
            self.known[self.next_id] = Known(key)
            self.next_id += 1

    def fetch(self) -> None:
        run = self.random.choice([1, 2, 3, 3])
        asked = AsAnswer(1, self.random.choice([None, 5_000]), run)
        limit = self.random.choice([100, 100, 1, 2])
        frame = self.store.deliver.fetch(self.group, 0, self.group, limit, 1 << 20, self.now_ms, asked=asked)
        found = list(zip(*delivered(frame), strict=True)) if frame else []
        expected = {key: self._next_of(key, run) for key in KEYS}
        given = {key: [one for one, _ in found if self.known[one].key == key] for key in KEYS}
        is_exact = not self.loose
        assert not is_exact or limit < 100 or given == expected
        assert not is_exact or len(found) == min(limit, sum(map(len, expected.values())))
        for key in KEYS:
            assert len(given[key]) <= run
            assert not given[key] or not self._is_out(key)
            assert {self.known[one].state for one in given[key]} <= {READY}
        rows = self.store.tables.groups[self.group].deliveries.items
        for message_id, epoch in found:
            key = self.known[message_id].key
            assert key in self.loose or given[key] == expected[key][: len(given[key])]
            until_ms = int(rows["time_ms"][int(self.store.tables.rows["topic_seq"][message_id])])
            self.known[message_id] = Known(key, OUT, epoch, until_ms)

    def _is_out(self, key: bytes) -> bool:
        return any(known.key == key and known.state == OUT for known in self.known.values())

    def _next_of(self, key: bytes, run: int) -> list[int]:
        mine = {one: known for one, known in self.known.items() if known.key == key and known.state != DONE}
        if self._is_out(key):
            return []
        found = []
        for message_id in sorted(mine):
            if mine[message_id].state == WAITING or len(found) == run:
                break
            found.append(message_id)
        return found

    def refused(self) -> None:
        """The leases cannot be logged: nothing was given out, and all is given later."""
        expected = any(self._next_of(key, 3) for key in KEYS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.store.deliver._engine, "link", _no_space)
            try:
                self.store.deliver.fetch(
                    self.group, 0, 1, 100, 1 << 20, self.now_ms, asked=AsAnswer(1, None, 3)
                )
            except DiskFull:
                assert expected or self.loose
            else:
                assert not expected or self.loose

    def _some(self, state: int) -> list[int]:
        ids = [one for one, known in self.known.items() if known.state == state]
        return self.random.sample(ids, min(len(ids), self.random.choice([1, 1, 2])))

    def ack(self) -> None:
        ids = self._some(OUT)
        if ids:
            payload = ack_payload(self.group, ids, [self.known[one].epoch for one in ids])
            assert self.store.deliver.ack(payload, 1, self.now_ms).accepted == len(ids)
        for one in ids:
            self.known[one].state = DONE

    def ack_late(self) -> None:
        """A receipt counts until the message is given out again, also when the lease is over."""
        for one in self._some(READY):
            payload = ack_payload(self.group, [one], [self.known[one].epoch])
            if self.store.deliver.ack(payload, 1, self.now_ms).accepted:
                assert self.known[one].epoch
                self.known[one].state = DONE

    def nack(self) -> None:
        ids, delay_ms = self._some(OUT), self.random.choice([0, 0, 1_500, 60_000])
        if ids:
            epochs = [self.known[one].epoch for one in ids]
            answers = self.store.settle.nack(self.group, ids, epochs, delay_ms, "no", self.now_ms)
            assert set(answers) == {"nacked"}
        for one in ids:
            self.known[one].state = WAITING if delay_ms else READY
            self.known[one].until_ms = self.now_ms + delay_ms

    def extend(self) -> None:
        ids = self._some(OUT)
        epochs = [self.known[one].epoch for one in ids]
        answers = self.store.settle.extend(self.group, ids, epochs, self.now_ms + 4_000) if ids else []
        assert answers == ["extended"] * len(ids)
        for one in ids:
            self.known[one].until_ms = self.now_ms + 4_000

    def call_again(self) -> None:
        """What was done comes again in a place that the model does not say."""
        delay_ms = self.random.choice([None, 2_000])
        at_ms = None if delay_ms is None else self.now_ms + delay_ms
        ids = self._some(self.random.choice([DONE, OUT, WAITING, READY]))
        answers = self.store.change.redeliver(ids, None, at_ms, self.now_ms, acked=True) if ids else []
        for one, answer in zip(ids, answers, strict=True):
            if answer == "redelivered":
                self.loose.add(self.known[one].key)
                self.known[one].state = READY if delay_ms is None else WAITING
                self.known[one].until_ms = at_ms or self.now_ms

    def extend_late(self) -> None:
        ids = [one for one in self._some(READY) if self.known[one].epoch]
        epochs = [self.known[one].epoch for one in ids]
        for answer in self.store.settle.extend(self.group, ids, epochs, self.now_ms + 9_000) if ids else []:
            assert answer in ("lease_ended", "stale_receipt")

    def give_back(self) -> None:
        ids = self._some(OUT)
        if ids:
            epochs = [self.known[one].epoch for one in ids]
            assert set(self.store.settle.give_back(self.group, ids, epochs, self.now_ms)) == {"returned"}
        for one in ids:
            self.known[one].state = READY

    def cancel(self) -> None:
        ids = self._some(self.random.choice([READY, OUT, WAITING]))
        for one, answer in zip(ids, self.store.change.cancel(ids, self.now_ms, stop=True), strict=True):
            assert answer in ("cancelled", "stopped")
            self.known[one].state = DONE

    def time_passes(self) -> None:
        self.now_ms += self.random.choice([1, 500, 1_000, 10_000])
        pump(self.store, self.now_ms)
        for known in self.known.values():
            if known.state in (OUT, WAITING) and known.until_ms <= self.now_ms:
                known.state = READY

    def restart(self) -> None:
        self.store.sync()
        state = self.store.look.state_hash()
        self.store.close(clean=self.random.random() < 0.5)
        if self.random.random() < 0.3:
            remove_derived_files(self.directory)
        self.store = Store.open(self.directory, SMALL, self.now_ms)
        assert self.store.look.state_hash() == state
        self.time_passes()  # also of leases that were over before

    def run(self) -> None:
        steps = [self.send, self.fetch, self.fetch, self.fetch, self.ack, self.ack, self.nack, self.extend,
                 self.give_back, self.cancel, self.time_passes, self.time_passes, self.restart, self.ack_late,
                 self.extend_late, self.refused, self.call_again]  # fmt: skip
        weights = [3, 4, 4, 4, 3, 3, 4, 1, 2, 0.5, 2, 2, 1, 0.5, 0.5, 0.5, self.random.choice([0, 0, 1])]
        for step in self.random.choices(steps, weights, k=STEPS):
            step()
        while any(known.state != DONE for known in self.known.values()):
            self.now_ms += 60_000
            self.time_passes()
            self.fetch()
            before = sum(known.state == OUT for known in self.known.values())
            assert before, "it is stuck"
            self.ack()


def _no_space(*_: object) -> None:
    raise DiskFull("the disk is full")


@pytest.mark.promise("in-which-order")
@pytest.mark.parametrize("part", range(4))
def test_what_each_request_is_given(part: int) -> None:
    for seed in range(examples(30)):
        directory = Path(tempfile.mkdtemp(prefix="tickwheel-batches-"))
        episode = Episode(directory, seed * 4 + part)
        try:
            episode.run()
        except BaseException as error:
            error.add_note(f"seed {seed * 4 + part}")
            raise
        finally:
            episode.store.close(clean=False)
            shutil.rmtree(directory)
