"""The comment of a message table: read, written, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.outbox.errors import BadTable
from tickwheel.outbox.messages.settings import MessageSettings, parse_comment

VITESS = (
    "vitess_message,vt_min_backoff=30,vt_max_backoff=3600,vt_ack_wait=30,vt_purge_after=86400,"
    "vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30"
)
MANDATORY = "vt_ack_wait=1,vt_purge_after=2,vt_batch_size=3,vt_cache_size=4,vt_poller_interval=5"
numbers = st.integers(1, 10**15)
names = st.text(st.characters(exclude_characters="|,", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name.strip() == name
)


def test_the_documents_comment() -> None:
    assert parse_comment(VITESS, "t") == MessageSettings(
        ack_wait_ms=30_000,
        min_backoff_ms=30_000,
        max_backoff_ms=3_600_000,
        purge_after_ms=86_400_000,
        batch_size=10,
        cache_size=10_000,
        poller_interval_ms=30_000,
    )


@table("head", ["vitess_message", "tickwheel_message"])
def test_what_is_optional_may_be_left_out(head: str) -> None:
    assert parse_comment(f" {head} , {MANDATORY.replace(',', ' , ')},", "t") == MessageSettings(
        ack_wait_ms=1_000,
        min_backoff_ms=None,
        max_backoff_ms=0,
        purge_after_ms=2_000,
        batch_size=3,
        cache_size=4,
        poller_interval_ms=5_000,
    )


@pytest.mark.promise("V35")
def test_seconds_may_have_fractions_and_columns_are_kept_in_order() -> None:
    fine = parse_comment(f"vitess_message,{MANDATORY},vt_min_backoff=0.0701", "t")
    assert fine.min_backoff_ms == 71
    found = parse_comment(f"vitess_message,{MANDATORY},vt_min_backoff=0.25,vt_message_cols=id| b |a", "t")
    assert (found.min_backoff_ms, found.columns) == (250, ("id", "b", "a"))


@given(
    st.builds(
        MessageSettings,
        ack_wait_ms=numbers,
        min_backoff_ms=st.none() | numbers,
        max_backoff_ms=numbers | st.just(0),
        purge_after_ms=numbers | st.just(0),
        batch_size=st.integers(1, 100_000),
        cache_size=st.integers(1, 1_000_000),
        poller_interval_ms=numbers,
        columns=st.just(()) | st.lists(names).map(lambda some: ("id", *some)),
    )
)
def test_what_is_written_is_read(settings: MessageSettings) -> None:
    assert parse_comment(settings.comment(), "t") == settings


@pytest.mark.promise("V37")
@table(
    "comment",
    [
        None,
        "",
        "orders of the shop",
        "vitess_message",
        "vitess_messages," + MANDATORY,
        "my vitess_message," + MANDATORY,
        *(f"vitess_message,{MANDATORY}".replace(f"{key},", "") for key in MANDATORY.split(",")[:4]),
        f"vitess_message,{MANDATORY},vt_unknown=1",
        f"vitess_message,{MANDATORY},vt_min_backoff",
        f"vitess_message,{MANDATORY},vt_min_backoff=-1",
        f"vitess_message,{MANDATORY},vt_min_backoff=inf",
        f"vitess_message,{MANDATORY},vt_message_cols=message",
        "vitess_message," + MANDATORY.replace("ack_wait=1", "ack_wait=soon"),
        "vitess_message," + MANDATORY.replace("ack_wait=1", "ack_wait=nan"),
        "vitess_message," + MANDATORY.replace("ack_wait=1", "ack_wait=0"),
        "vitess_message," + MANDATORY.replace("batch_size=3", "batch_size=0"),
        "vitess_message," + MANDATORY.replace("cache_size=4", "cache_size=1.5"),
    ],
)
def test_comments_that_cannot_be_used_say_so(comment: str | None) -> None:
    with pytest.raises(BadTable) as caught:
        parse_comment(comment, "orders")
    assert caught.value.advice


@table(
    "wrong",
    [
        {"ack_wait_ms": 0},
        {"ack_wait_ms": 1.5},
        {"ack_wait_ms": True},
        {"min_backoff_ms": 0},
        {"min_backoff_ms": 2.5},
        {"max_backoff_ms": -1},
        {"purge_after_ms": None},
        {"batch_size": 0},
        {"cache_size": 0},
        {"poller_interval_ms": 0},
        {"columns": ("message",)},
        {"columns": "id|message"},
        {"columns": ("id", "a,b")},
        {"columns": ("id", "a|b")},
        {"columns": ("id", " a")},
        {"columns": ("id", "")},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadTable):
        MessageSettings(**wrong)  # type: ignore[arg-type]
