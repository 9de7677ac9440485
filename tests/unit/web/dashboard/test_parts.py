"""The examples in the text of the dashboard's parts, and what they leave out."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime
from types import ModuleType

import pytest

from tickwheel_web.dashboard import acting, assets, drawing, forms, notices, rights, words
from tickwheel_web.dashboard.login import door
from tickwheel_web.dashboard.logins import Logins
from tickwheel_web.dashboard.notices import MAX_KEPT, Notice, Notices
from tickwheel_web.dashboard.page import Hiding
from tickwheel_web.dashboard.pages import forecast
from tickwheel_web.dashboard.push import listing as endpoints
from tickwheel_web.dashboard.querying import query
from tickwheel_web.dashboard.rights import Rights
from tickwheel_web.dashboard.table import PAGES
from tickwheel_web.dashboard.topics import settings


@pytest.mark.parametrize(
    "module",
    [acting, drawing, endpoints, forecast, forms, notices, query, rights, settings, words, door],
    ids=lambda one: one.__name__,
)
def test_examples_in_the_text(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 0


def test_each_key_leads_to_one_page() -> None:
    keys = [page.entry.key for page in PAGES if page.entry is not None and page.entry.key]
    assert sorted(keys) == sorted(set(keys))


def test_rights_of_an_older_broker_are_all() -> None:
    rights = Rights(None)
    assert rights.may("admin:*")
    assert rights.sees("any on orders")


def test_where_nothing_may_be_changed_all_can_be_seen() -> None:
    rights = Rights(["all:*"], is_read_only=True)
    assert rights.sees("admin:*")
    assert rights.may("query:orders")
    assert not any(rights.may(right) for right in ("publish:orders", "consume:orders", "admin:*"))


def test_hidden_headers_are_known_in_any_case() -> None:
    hiding = Hiding(headers=frozenset({"authorization"}))
    assert hiding.shown({"Authorization": "secret", "shop": 1}) == {"shop": 1}


async def test_a_login_ends_when_it_is_not_used_and_after_half_a_day(autojump_clock: object) -> None:
    import trio

    logins = Logins(max_s=100.0, idle_s=30.0)
    number = logins.begin("twk_0123456789ab_a_secret_with_more", "127.0.0.1")
    assert logins.find("other") is None
    for _ in range(4):
        await trio.sleep(24)
        found = logins.find(number)
        assert found is not None
        assert found.name == "twk_0123456789ab"
    await trio.sleep(5)  # 101 s in all
    assert logins.find(number) is None
    number = logins.begin("twk_0123456789ab_a_secret_with_more", "127.0.0.1")
    await trio.sleep(31)
    assert list(logins) == []
    assert logins.find(number) is None


@pytest.mark.parametrize(
    "token", ["secret", "twk_secret", "twk_0123456789ab", "twk_0123_secret", "other_0123456789ab_secret"]
)
async def test_what_is_no_token_has_no_name(token: str) -> None:
    logins = Logins()
    found = logins.find(logins.begin(token, "127.0.0.1"))
    assert found is not None
    assert found.name == "a token"


async def test_logins_are_so_many_at_most() -> None:
    logins = Logins(most=3)
    numbers = [logins.begin(f"twk_{number}_secret", "127.0.0.1") for number in range(5)]
    assert [logins.find(number) is not None for number in numbers] == [False, False, True, True, True]
    logins.end(numbers[-1])
    assert len(logins) == 2


async def test_who_logs_in_without_end_ends_logins_of_the_same_token_alone() -> None:
    logins = Logins(most=5, most_of_token=3)
    other = logins.begin("twk_other_secret", "127.0.0.1")
    numbers = [logins.begin("twk_busy_secret", "127.0.0.1") for _ in range(10)]
    assert [logins.find(number) is not None for number in numbers] == [False] * 7 + [True] * 3
    assert logins.find(other) is not None


def test_a_notice_is_for_who_has_caused_it() -> None:
    notices = Notices()
    number = notices.keep("ada", Notice("3 cancelled"))
    assert notices.find("ada", number) == Notice("3 cancelled")
    assert notices.find("bob", number) is None
    for _ in range(MAX_KEPT):
        notices.keep("bob", Notice("more"))
    assert notices.find("ada", number) is None


def test_the_name_of_an_asset_changes_with_its_content(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "a.css").write_text("a {}")
    (folder / "notes.txt").write_text("not served")
    before = assets.Assets(folder)
    (folder / "a.css").write_text("a { }")
    after = assets.Assets(folder)
    assert before.names == after.names == ["a.css"]
    assert before.path("a.css") != after.path("a.css")


def test_times_beyond_all_calendars_are_written() -> None:
    assert (
        words.relative(datetime.max.replace(tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC))
        == "in 7,968.8 years"
    )
