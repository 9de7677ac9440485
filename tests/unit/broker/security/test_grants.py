"""Which topics a grant means, and what it does not."""

import doctest

import pytest

import tickwheel.protocol.grants as grants_module
import tickwheel_broker.security.logins as logins_module
from tests.support.run.cases import table
from tickwheel.protocol.grants import PERMISSIONS, parse_grants
from tickwheel_broker.security.grants import ANYONE, NOBODY, OWNER, Identity


def test_examples_in_the_text() -> None:
    for module in (grants_module, logins_module):
        assert doctest.testmod(module).failed == 0


def identity(*grants: str) -> Identity:
    return Identity("0" * 12, "test", parse_grants(grants))


@table(
    ("grant", "permission", "topic", "expected"),
    [
        ("consume:orders", "consume", "orders", True),
        ("consume:orders", "publish", "orders", False),
        ("consume:orders", "consume", "orders2", False),
        ("consume:orders", "consume", "Orders", False),
        ("consume:orders.*", "consume", "orders.new", True),
        ("consume:orders.*", "consume", "orders", False),
        ("consume:*", "consume", "anything", True),
        ("consume:order?", "consume", "orders", True),
        ("consume:[ab]x", "consume", "bx", True),
        # What belongs to a topic goes with it, except that nobody forges its dead letters.
        ("consume:orders", "consume", "orders.dead", True),
        ("consume:orders", "consume", "orders.prepared", True),
        ("consume:orders", "consume", "orders/-80", True),
        ("query:orders", "query", "orders.dead", True),
        ("admin:orders", "admin", "orders.dead", True),
        ("publish:orders", "publish", "orders/-80", True),
        ("publish:orders", "publish", "orders.dead", False),
        ("publish:orders", "publish", "orders.prepared", False),
        ("publish:*", "publish", "orders.dead", True),
        ("consume:*.dead", "consume", "orders.dead", True),
        ("consume:*.dead", "consume", "orders", False),
        ("consume:orders.dead", "consume", "orders", False),
    ],
)
def test_what_a_grant_means(grant: str, permission: str, topic: str, expected: bool) -> None:
    someone = identity(grant)
    assert someone.may(permission, topic) is expected
    assert someone.may(permission, topic) is expected  # remembered


def test_all_means_each_permission() -> None:
    someone = identity("all:orders")
    assert all(someone.may(permission, "orders") for permission in PERMISSIONS)
    assert not any(someone.may_everywhere(permission) for permission in PERMISSIONS)
    assert identity("query:*").may_everywhere("query")
    assert not identity("query:*").may_everywhere("admin")
    assert not identity("query:?*").may_everywhere("query")


def test_who_needs_no_grants_and_who_has_none() -> None:
    for someone in (ANYONE, OWNER):
        assert someone.may("admin", "orders")
        assert someone.may_everywhere("admin")
        assert not someone.is_limited
    assert NOBODY.is_limited
    assert not NOBODY.sees("orders")


def test_how_grants_are_told() -> None:
    assert ANYONE.texts is None
    assert NOBODY.texts == []
    assert identity("query:*", "consume:orders").texts == ["consume:orders", "query:*"]
    assert parse_grants(identity("all:x", "query:*").texts) == parse_grants(["all:x", "query:*"])


def test_what_was_asked_is_not_remembered_without_end() -> None:
    someone = identity("consume:orders")
    for number in range(25_000):
        someone.may("consume", f"topic-{number}")
    assert len(someone._known) <= 10_000
    assert someone.may("consume", "orders")


@table("text", ["", "consume", "consume:", "fly:orders", ":orders", f"consume:{'x' * 300}"])
def test_what_is_no_grant(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (grant|permission)"):
        parse_grants([text])
