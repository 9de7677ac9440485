"""Any interleaving of several nodes that write to one partition: all readers agree, and what a node answered for
counts. The same runs find each defect that is planted in the rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cluster.partition import SEGMENT_BYTES, World
from timerlog.errors import DamagedLog
from timerlog.replication.record import Head, Kind
from timerlog.replication.rule import Confirmations, Reader, Said, Taken

STEPS = 120
#: So many runs find each of the defects; most are found within ten.
SEEDS_A_DEFECT = 400


@given(st.integers(0, 1 << 64), st.integers(20, 300))
def test_all_readers_agree_and_no_answer_is_taken_back(seed: int, steps: int) -> None:
    world = World(seed)
    world.run(steps)
    world.check()


#: A node was started anew, and fenced for a term that it had owned before.
TWICE_THE_SAME_TERM = (143, 243)


def test_a_node_that_owns_a_term_twice_answers_only_for_its_own() -> None:
    seed, steps = TWICE_THE_SAME_TERM
    for make, is_right in ((Confirmations, True), (NumbersAlone, False)):
        world = World(seed, make_confirmations=make)
        world.run(steps)
        if is_right:
            world.check()
        else:
            with pytest.raises(AssertionError, match="passed over"):
                world.check()


def test_runs_go_somewhere() -> None:
    """Most runs change owners, and batches of several owners count."""
    worlds = [World(seed) for seed in range(40)]
    for world in worlds:
        world.run(300)
    assert sum(len(world.check()) > 20 for world in worlds) > 20
    assert sum(sum(bool(node.promised) for node in world.nodes) > 1 for world in worlds) > 20
    assert sum(any(node.linked for node in world.nodes) for world in worlds) > 20


class UnfinishedKept(Reader):
    """A FENCE leaves what its predecessor did not finish where it is."""

    def _fence(self, head: Head) -> Taken:
        pending, parts = self._pending, list(self._parts)
        taken = Reader._fence(self, head)
        if taken.said is Said.FENCED and pending is not None:
            self._pending = replace(pending, term=head.term, node=head.node, seq=1)
            self._parts = parts
        return taken


class LowerTerm(Reader):
    """Any other term counts."""

    def _fence(self, head: Head) -> Taken:
        if head.term < self.state.term:
            self.state = replace(self.state, term=head.term - 1)
        return Reader._fence(self, head)


class GapIsFine(Reader):
    """DATA counts whatever its number is."""

    def _is_expected(self, head: Head) -> bool:
        state = self._expected
        if head.kind is Kind.DATA and (head.term, head.node) == (state.term, state.node):
            self._go_to(replace(state, seq=head.seq))
        return Reader._is_expected(self, head)


class StagedAfterAGap(Reader):
    """STAGE counts whatever stands before it."""

    def _is_expected(self, head: Head) -> bool:
        state = self._expected
        if head.kind is Kind.STAGE and (head.term, head.node) == (state.term, state.node):
            self._go_to(replace(state, seq=head.seq, chain=head.chain))
            return True
        return Reader._is_expected(self, head)


class LinkOutlivesFence(Reader):
    """A FENCE leaves the links that its predecessor did not finish."""

    def _fence(self, head: Head) -> Taken:
        links = list(self._links)
        taken = Reader._fence(self, head)
        if taken.said is Said.FENCED:
            self._links = links
        return taken


class BeatHidesGap(Reader):
    """A BEAT counts whatever stands before it."""

    def _is_expected(self, head: Head) -> bool:
        state = self._expected
        if head.kind is Kind.BEAT and (head.term, head.node) == (state.term, state.node):
            self._go_to(replace(state, seq=head.seq))
            return True
        return Reader._is_expected(self, head)


@dataclass(slots=True)
class AcrossAGap(Confirmations):
    """Any place will do."""

    def placed(self, seq: int, offset: int | None) -> int:
        if offset is not None:
            self.seq, self.offset = max(self.seq, seq), offset
        return self.seq


@dataclass(slots=True)
class BehindAnyOfOurs(Confirmations):
    """It counts when it stands behind the record before it, whether that one counts or not."""

    last: tuple[int, int] = (-1, -1)

    def placed(self, seq: int, offset: int | None) -> int:
        if offset is not None:
            before, self.last = self.last, (seq, offset)
            if (seq - 1, offset - 1) == before:
                self.seq, self.offset = max(self.seq, seq), offset
                return self.seq
        return Confirmations.placed(self, seq, offset)


@dataclass(slots=True)
class NumbersAlone(Confirmations):
    """What counts is taken for the owner's own where it has the number of a record of its own."""

    def read(self, seq: int, offset: int, chain: int) -> int:
        if seq > self.seq:
            self.seq, self.offset = seq, offset
        return self._advance()


@pytest.mark.parametrize(
    "reader", [UnfinishedKept, LowerTerm, GapIsFine, StagedAfterAGap, LinkOutlivesFence, BeatHidesGap]
)
def test_a_defect_of_the_reader_is_found(reader: type[Reader]) -> None:
    # That an owner compares chains makes some of them harmless.
    for seed in range(SEEDS_A_DEFECT):
        world = World(seed, lambda: reader(SEGMENT_BYTES), NumbersAlone)
        try:
            world.run(STEPS)
            world.check()
        except (AssertionError, DamagedLog):
            return
    pytest.fail(f"{SEEDS_A_DEFECT} runs did not notice it")


@pytest.mark.parametrize("confirmations", [AcrossAGap, BehindAnyOfOurs])
def test_a_defect_of_the_owner_is_found(confirmations: type[Confirmations]) -> None:
    for seed in range(SEEDS_A_DEFECT):
        world = World(seed, make_confirmations=confirmations)
        world.run(STEPS)
        try:
            world.check()
        except AssertionError:
            return
    pytest.fail(f"{SEEDS_A_DEFECT} runs did not notice it")
