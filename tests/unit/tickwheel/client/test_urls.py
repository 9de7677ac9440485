"""URLs of one broker and of several nodes, and the turn in which those are tried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.cases import table
from tickwheel import Client, sync
from tickwheel.client.security import Security
from tickwheel.client.url import Address, Nodes, TcpAddress, UnixAddress, parse_url, parse_urls, shown_urls
from tickwheel.errors import ConfigError, TokenNeedsTls

A, B, C, D = (TcpAddress(host, 7070) for host in "abcd")


@table(
    ("urls", "addresses", "shown"),
    [
        ("tickwheel://a:7070,b:7070,c:7070", (A, B, C), "tickwheel://a:7070,b:7070,c:7070"),
        (["tickwheel://a:7070", "tickwheel://b:7070"], (A, B), "tickwheel://a:7070,b:7070"),
        (("tickwheel://a:7070,b:7070", "tickwheel://c:7070"), (A, B, C), "tickwheel://a:7070,b:7070,c:7070"),
        ("tickwheel://a:7070, tickwheel://b:7070", (A, B), "tickwheel://a:7070,b:7070"),
        ("TICKWHEEL://a:7070, b:7070/", (A, B), "tickwheel://a:7070,b:7070"),
        (["tickwheel://a:7070"], (A,), "tickwheel://a:7070"),
        ("tickwheel://a,b", (TcpAddress("a", 7411), TcpAddress("b", 7411)), "tickwheel://a:7411,b:7411"),
        (
            "tickwheels://[::1]:1,[::2]:2",
            (TcpAddress("::1", 1, tls=True), TcpAddress("::2", 2, tls=True)),
            "tickwheels://[::1]:1,[::2]:2",
        ),
        ("tickwheel+unix:///a,b.sock", (UnixAddress("/a,b.sock"),), "tickwheel+unix:///a,b.sock"),
        (
            "tickwheel+unix:///run/a,b.sock,tickwheel://b:7070,c:7070",
            (UnixAddress("/run/a,b.sock"), B, C),
            "tickwheel+unix:///run/a,b.sock,tickwheel://b:7070,tickwheel://c:7070",
        ),
    ],
)
def test_urls_name_nodes(urls: Any, addresses: tuple[Address, ...], shown: str) -> None:
    assert parse_urls(urls) == addresses
    assert shown_urls(addresses) == shown
    assert parse_urls(shown) == addresses
    assert Client(urls).url == sync.Client(urls).url == shown


@table(
    ("urls", "said"),
    [
        ([], "The list of URLs is empty."),
        ("tickwheel://a:1,,b:1", "names a node that has no host"),
        ("tickwheel://a:1,", "names a node that has no host"),
        ("tickwheel://,a:1", "names a node that has no host"),
        ("tickwheel://a:1,,tickwheel://b:1", "names a node that has no host"),
        (["tickwheel://a:1", ""], "'' is not the address of a broker."),
        (["tickwheel://a:1", 7], "The address of a broker is 7."),
        (b"tickwheel://a:1", "The address of a broker is b'tickwheel://a:1'."),
        (7, "The address of a broker is 7."),
        ("tickwheel://a:1,b:x", "The address 'tickwheel://b:x' has a bad port."),
        ("tickwheel://a:1,b:99999", "has a bad port."),
        ("tickwheel://a:1,b:1?x=1", "has parts that mean nothing here."),
        ("a:1,b:1", "is not the address of a broker."),
        ("tickwheel://a:1,tickwheels://b:1", "Some of the URLs are with TLS, and some without."),
        ("tickwheel://a:1,b:1,a:1", "The URL tickwheel://a:1 is there twice."),
        (["tickwheel://a", "tickwheel://A:7411/"], "The URL tickwheel://a:7411 is there twice."),
        (["tickwheel+unix:///x", "tickwheel+unix:///x"], "The URL tickwheel+unix:///x is there twice."),
    ],
)
def test_urls_that_cannot_be_used(urls: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(urls)
    assert said in caught.value.message
    assert caught.value.advice


def test_what_may_be_a_token_is_not_repeated() -> None:
    for urls in ("tickwheel://sec,ret@a:1", "tickwheel://a:1,x:sec,ret@b:1"):
        with pytest.raises(ConfigError, match="no user and no password") as caught:
            parse_urls(urls)
        assert "ret" not in str(caught.value)


def test_each_node_must_be_safe_for_a_token() -> None:
    Client("tickwheels://a:1,b:1", token="t")
    Client("tickwheel+unix:///x,tickwheels://b:1", token="t")
    with pytest.raises(TokenNeedsTls, match="tickwheel://b:1"):
        Client("tickwheel://127.0.0.1:1,b:1", token="t")


def test_the_environment_may_name_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKWHEEL_URL", "tickwheel://a:7070,b:7070")
    assert Client().url == Client("").url == "tickwheel://a:7070,b:7070"


# The turn -----------------------------------------------------------------------------------------


def nodes_of(*addresses: Address, connect_timeout_s: float = 6.0, security: Security | None = None) -> Nodes:
    return Nodes(addresses, connect_timeout_s, (security or Security()).check)


def a_round(nodes: Nodes, now: float = 0.0) -> list[Address]:
    """One in which no node serves."""
    nodes.begin_round(now)
    tried = []
    while (address := nodes.next()) is not None:
        tried.append(address)
        nodes.failed()
    return tried


def test_each_is_tried_once_a_round_in_order() -> None:
    nodes = nodes_of(A, B, C)
    assert a_round(nodes) == a_round(nodes) == [A, B, C]


def test_the_one_that_serves_is_the_first_choice_while_it_works() -> None:
    nodes = nodes_of(A, B, C)
    nodes.begin_round(0.0)
    assert (nodes.next(), nodes.next()) == (A, B)
    nodes.serves()
    assert a_round(nodes) == [B, A, C]
    assert a_round(nodes) == [A, B, C]


def test_the_one_that_is_named_comes_next_and_is_remembered_once_it_serves() -> None:
    nodes = nodes_of(A, B, C)
    nodes.begin_round(0.0)
    assert nodes.next() == A
    nodes.refer(str(C), 0.0)
    assert (nodes.next(), nodes.current) == (C, C)
    nodes.refer(str(D), 0.0)
    assert nodes.next() == D
    nodes.serves()
    assert a_round(nodes) == [D, A, B, C]
    assert a_round(nodes) == [A, B, C]


def test_one_that_is_named_when_a_connection_ends_begins_the_next_round() -> None:
    nodes = nodes_of(A, B, C)
    nodes.begin_round(0.0)
    nodes.next()
    nodes.serves()
    nodes.failed()
    nodes.refer(str(B), 0.0)
    assert a_round(nodes) == [B, A, C]


def test_nodes_that_name_each_other_end_a_round() -> None:
    for given, count in (((A,), 2), ((A, B, C), 6 + 2)):
        nodes, tried = nodes_of(*given), 0
        nodes.begin_round(0.0)
        while nodes.next() is not None:
            tried += 1
            nodes.refer(f"tickwheel://node-{tried}:1", 0.0)
        assert tried == count
    nodes = nodes_of(A, B)
    nodes.begin_round(0.0)
    nodes.next()
    nodes.refer(str(A), 0.0)
    assert (nodes.next(), nodes.next()) == (B, None)


@table(
    ("given", "named", "is_followed"),
    [
        ("tickwheel://a", "tickwheel://b", True),
        ("tickwheels://a", "tickwheels://b", True),
        ("tickwheels://a", "tickwheel://b", False),
        ("tickwheel://a", "tickwheels://b", False),
        ("tickwheel+unix:///a", "tickwheels://b", True),
        ("tickwheel+unix:///a", "tickwheel://b", False),
        ("tickwheel://a", "tickwheel+unix:///b", False),
        ("tickwheel://a", "tickwheel://b,c", False),
        ("tickwheel://a", "tickwheel://user@b", False),
        ("tickwheel://a", "http://b", False),
        ("tickwheel://a", "tickwheel://127.0.0.1", False),
        ("tickwheel://a", "tickwheel://localhost", False),
        ("tickwheel://a", "tickwheel://[::1]", False),
        ("tickwheel://a", "tickwheel://10.0.0.7", True),
        ("tickwheel://127.0.0.1", "tickwheel://0.0.0.0:7", False),
        ("tickwheel://127.0.0.1", "tickwheel://[::]:7", False),
        ("tickwheel://localhost", "tickwheel://127.0.0.1:7", True),
        ("tickwheel://[::1]", "tickwheel://127.0.0.1", True),
        ("tickwheel+unix:///a", "tickwheels://localhost", True),
        ("tickwheel://a", "", False),
    ],
)
def test_a_name_leads_to_no_place_that_is_less_safe(given: str, named: str, is_followed: bool) -> None:
    nodes = nodes_of(parse_url(given))
    nodes.begin_round(0.0)
    nodes.next()
    nodes.refer(named, 0.0)
    assert nodes.next() == (parse_url(named) if is_followed else None)


def test_a_name_is_not_followed_with_a_token_that_others_could_read() -> None:
    local = TcpAddress("127.0.0.1", 1)
    for security, is_followed in (
        (Security(token="t"), False),
        (Security(token="t", plain_token=True), True),
    ):
        nodes = nodes_of(local, security=security)
        nodes.begin_round(0.0)
        nodes.next()
        nodes.refer(str(B), 0.0)
        assert (nodes.next() == B) is is_followed


def test_one_that_says_nothing_is_left_out_for_a_while_and_then_gets_more_time() -> None:
    nodes = nodes_of(A, B, C)  # two seconds each
    assert nodes.patience_s == 2.0
    nodes.begin_round(0.0)
    nodes.next()
    nodes.fell_silent(2.0)
    assert (nodes.next(), nodes.next(), nodes.patience_s) == (B, C, 2.0)
    assert a_round(nodes, 5.9) == [B, C]
    nodes.begin_round(5.9)
    nodes.next()
    nodes.refer(str(A), 5.9)
    assert nodes.next() == C
    nodes.begin_round(6.0)
    assert (nodes.next(), nodes.patience_s) == (A, 4.0)
    nodes.fell_silent(10.0)
    nodes.begin_round(18.0)
    assert (nodes.next(), nodes.patience_s) == (A, 8.0)
    nodes.serves()
    assert nodes.patience_s == 2.0


def test_one_that_says_that_it_does_not_serve_is_not_silent_any_more() -> None:
    nodes = nodes_of(A, B, C)
    nodes.begin_round(0.0)
    nodes.next()
    nodes.fell_silent(2.0)
    nodes.begin_round(6.0)
    nodes.next()
    nodes.failed()
    assert nodes.patience_s == 2.0


def test_one_that_was_silent_long_ago_has_the_usual_time() -> None:
    nodes = nodes_of(A, B, C)
    nodes.begin_round(0.0)
    nodes.next()
    nodes.fell_silent(2.0)
    for now, patience_s in ((10.0, 4.0), (10.1, 2.0)):
        nodes.begin_round(now)
        assert (nodes.next(), nodes.patience_s) == (A, patience_s)


def test_if_all_say_nothing_all_are_tried() -> None:
    nodes = nodes_of(A, B)
    for now in (1.0, 2.0):
        nodes.begin_round(now)
        assert (nodes.next(), nodes.fell_silent(now), nodes.next(), nodes.fell_silent(now)) == (
            A,
            None,
            B,
            None,
        )
    nodes.begin_round(2.0)
    assert (nodes.next(), nodes.patience_s) == (A, 10.0)


def test_the_only_one_has_all_the_time() -> None:
    nodes = nodes_of(A, connect_timeout_s=0.1)
    assert nodes.patience_s == 10.0
    nodes.begin_round(0.0)
    nodes.next()
    nodes.fell_silent(10.0)
    assert (a_round(nodes, 10.0), nodes.patience_s) == ([A], 10.0)
