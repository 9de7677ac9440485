"""How many tables a process may map: topics and groups are refused before the system has no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from timerlog.engine import groups, topics
from timerlog.errors import NoAddressSpace, TooManyGroups, TooManyTopics
from timerlog.files import mapped_file
from timerlog.files.mapped_file import Region
from timerlog.files.maps import LEFT_FOR_OTHERS, Maps, count_maps
from timerlog.store import Store


class System:
    """So many maps there may be, and so many there are."""

    def __init__(self, most: int, used: int) -> None:
        self.most, self.used, self.counts = most, used, 0
        self.maps = Maps(lambda: self.most, self._count)

    def _count(self) -> int:
        self.counts += 1
        return self.used


def test_what_is_left_is_counted_only_where_it_is_little() -> None:
    system = System(LEFT_FOR_OTHERS + 1_000, 0)
    assert all(system.maps.has_room(1) for _ in range(1_000))
    assert system.counts == 1
    system.used = 400  # most of the tables that were expected were not made
    assert system.maps.has_room(1)
    assert system.counts == 2


def test_some_are_left_for_everything_else_and_who_asks_again_does_not_count_each_time() -> None:
    system = System(LEFT_FOR_OTHERS + 1_000, 1_000)
    assert not any(system.maps.has_room(1) for _ in range(640))
    assert system.counts == 10
    system.used = 0
    assert any(system.maps.has_room(1) for _ in range(64)), "what was deleted is noticed"


def test_a_table_is_one_map_however_much_it_grows(tmp_path: Path) -> None:
    before = count_maps()
    regions = [Region(path=tmp_path / str(number), room_bytes=1 << 30) for number in range(200)]
    for region in regions:
        region.ensure(1 << 16)
        region.ensure(1 << 18)
    assert count_maps() - before <= 1.2 * len(regions)
    for region in regions:
        region.array("u1", 0, 1 << 18)[:] = 7
        region.clear()
        region.ensure(1 << 16)
        assert not region.array("u1", 0, 1 << 16).any()
        region.close()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> System:
    """A system without maps from now on."""
    system = System(65_530, 65_000)
    for module in (topics, groups, mapped_file):
        monkeypatch.setattr(module, "MAPS", system.maps)
    return system


def test_a_topic_and_a_group_are_refused_with_the_right_advice(store: Store, full: System) -> None:
    full.used = 0
    topic = store.topics.open("t", NOW_MS)
    full.used = full.most
    for _ in range(full.most):  # what is known to be left
        if not full.maps.has_room(64):
            break
    position = store.log.appended_position
    with pytest.raises(TooManyTopics) as refused:
        store.topics.open("u", NOW_MS)
    assert "vm.max_map_count" in str(refused.value.advice)
    with pytest.raises(TooManyGroups) as refused_group:
        store.groups.open(topic, "g", NOW_MS)
    assert "vm.max_map_count" in str(refused_group.value.advice)
    assert store.log.appended_position == position, "nothing of it is in the log"


def test_a_start_beyond_the_limit_says_so(
    tmp_path: Path, full: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file.memory, "map_file", lambda *_args, **_options: -12)
    with pytest.raises(NoAddressSpace) as failed:
        Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert "vm.max_map_count" in str(failed.value.advice)
