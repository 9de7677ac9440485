"""Keys of tasks that wait for their time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickwheel.celery.keys import another_key, eta_key, task_key
from tickwheel.protocol.limits import MAX_KEY_BYTES


def test_a_retry_and_a_replacement_have_keys_of_their_own() -> None:
    first = {"id": "a", "retries": 0}
    assert eta_key(first) == task_key("a") == "a:0:0"
    assert eta_key({**first, "retries": 2}) == "a:2:0"
    assert eta_key({**first, "replaced_task_nesting": 1}) == "a:0:1"


def test_what_is_no_task_has_none() -> None:
    assert eta_key({}) is None


def test_what_is_sent_under_a_taken_key_is_found_by_its_beginning() -> None:
    assert another_key("a:0:0").startswith("a:0:0:")
    assert another_key("a:0:0") != another_key("a:0:0")


@given(st.text(max_size=400), st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_id_fits_into_a_key(task_id: str, retries: int, nesting: int) -> None:
    key = another_key(task_key(task_id, retries, nesting))
    assert 0 < len(key.encode()) <= MAX_KEY_BYTES
    assert not key.startswith("~")
