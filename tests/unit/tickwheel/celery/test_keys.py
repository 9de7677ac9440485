"""Keys of tasks that wait for their time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickwheel.celery.keys import eta_key, other_keys, task_key, task_keys
from tickwheel.protocol.limits import MAX_KEY_BYTES
from tickwheel.sharing.copy_keys import copy_keys


def test_a_retry_has_a_key_of_its_own() -> None:
    first = {"id": "a", "retries": 0}
    assert eta_key(first) == task_key("a") == "a:0:0"
    assert eta_key({**first, "retries": 2}) == "a:2:0"


def test_every_key_is_one_that_is_asked_for() -> None:
    asked = dict(task_keys("a"))
    for retries, nesting in ((0, 0), (15, 0), (16, 0), (-1, 0), (1_000, 0), (0, 1), (3, 2)):
        key = eta_key({"id": "a", "retries": retries, "replaced_task_nesting": nesting})
        assert key is not None
        assert asked[key] is (key in copy_keys("a"))


def test_what_is_no_task_has_none() -> None:
    assert eta_key({}) is None


def test_a_taken_key_leads_to_others_of_the_id_and_to_a_unique_one_in_the_end() -> None:
    for key in ("a:b:0:0", "a:b:copy:3"):
        *listed, last = other_keys(key)
        assert len(set(listed)) > 10
        assert set(listed) < set(copy_keys("a:b"))
        assert last not in copy_keys("a:b")
        assert last.startswith("a:b:copy:")


@given(st.text(max_size=400), st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_id_fits_into_a_key(task_id: str, retries: int, nesting: int) -> None:
    key = eta_key({"id": task_id, "retries": retries, "replaced_task_nesting": nesting})
    assert key is not None
    for one in (key, *other_keys(key)):
        assert 0 < len(one.encode()) <= MAX_KEY_BYTES
        assert not one.startswith("~")
