"""Which URLs may be called, as far as their text tells, and which patterns allow which of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.run.cases import table
from tests.support.run.profile import examples
from tickwheel.protocol.targets.target_urls import check_pattern, check_url, matches, shortened

GOOD = (
    "https://shop.example",
    "http://shop.example:8080/hooks?a=1&b=%20#"[:-1],
    "https://xn--bcher-kva.example/",
    "https://a_b.example/",
    "https://localhost/x",
    "https://10.0.0.1/inside",
    "http://127.0.0.1:80/",
    "https://[2606:4700::1111]/",
    "https://[::1]:8443/x",
)
BAD = (
    "", "shop.example", "/x", "ftp://a.example/", "file:///etc/passwd", "javascript:alert(1)", "https://", "https:///x",
    "https://user@a.example/", "https://user:pass@a.example/", "https://@a.example/", "https://a.example/#part",
    "https://a.example/#", "https://a.example:0/", "https://a.example:/", "https://a.example:99999/",
    "https://a.example:x/", "https://a b.example/", "https://a.example/ ", "https://a.example/\n", "https://bücher.example/",
    "https://a.example\\@b.example/", "https://a..example/", "https://.a.example/", "https://a.example./",
    "https://-a.example/", "https://2130706433/", "https://0x7f000001/", "https://017700000001/", "https://127.1/",
    "https://0x7f.1/", "https://0.0.0.0/", "https://169.254.169.254/latest/meta-data", "https://[fe80::1]/",
    "https://[::]/", "https://[::ffff:169.254.169.254]/", "https://224.0.0.1/", "https://255.255.255.255/",
    "https://[::1", "https://a.example/x/../y", "https://a.example/x/%2e%2E/y", "https://a.example/./", "https://a.example/..",
    "https://a.example/" + "x" * 2_048,
)  # fmt: skip


@table("url", GOOD)
def test_what_may_be_called(url: str) -> None:
    check_url(url)


@table("url", BAD)
def test_what_may_not(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|://"):
        check_url(url)


@table(
    "pattern",
    [
        "https://a.example/*/x",
        "https://a.example/x*",
        "https://*/",
        "https://a.*.example/",
        "https://a.example/*?b=1",
        "*",
    ],
)
def test_patterns_that_say_nothing_clear(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"://|URL|pattern"):
        check_pattern(pattern)


ALLOWED = (
    ("https://a.example/*", "https://a.example/", True),
    ("https://a.example/*", "https://a.example", True),
    ("https://a.example/*", "https://a.example/x/y?z=1", True),
    ("https://a.example/*", "https://A.example/x", True),
    ("https://a.example/*", "https://a.example:443/x", True),
    ("https://a.example/*", "https://a.example:8443/x", False),
    ("https://a.example/*", "http://a.example/x", False),
    ("https://a.example/*", "https://a.example.evil.example/x", False),
    ("https://a.example/*", "https://a.example@evil.example/x", False),
    ("https://a.example/*", "https://b.a.example/x", False),
    ("https://a.example/in/*", "https://a.example/in/x", True),
    ("https://a.example/in/*", "https://a.example/in", False),
    ("https://a.example/in/*", "https://a.example/inside", False),
    ("https://a.example/in/*", "https://a.example/in/../out", False),
    ("https://a.example/in/*", "https://a.example/in/%2e%2e/out", False),
    ("https://a.example/in/*", "https://a.example/in/..%2Fout", False),
    ("https://a.example/in/*", "https://a.example/in/x%5c..%5cout", False),
    ("https://a.example/x", "https://a.example/x?y=1", True),
    ("https://a.example/x", "https://a.example/x/", False),
    ("https://a.example", "https://a.example/", True),
    ("https://*.a.example/*", "https://b.a.example/x", True),
    ("https://*.a.example/*", "https://c.b.a.example/x", True),
    ("https://*.a.example/*", "https://a.example/x", False),
    ("https://*.a.example/*", "https://evila.example/x", False),
    ("http://a.example:8080/*", "http://a.example:8080/x", True),
)


@table(("pattern", "url", "is_allowed"), ALLOWED)
def test_what_a_pattern_allows(pattern: str, url: str, is_allowed: bool) -> None:
    check_pattern(pattern)
    assert matches(pattern, url) is is_allowed


@given(rest=st.text(st.sampled_from("ae.@:/\\%2?#*x[]0 "), max_size=20))
@settings(max_examples=examples(500), deadline=None)
def test_nothing_behind_it_leads_elsewhere(rest: str) -> None:
    """Whatever follows the pattern's host, what it allows has that host."""
    url = f"https://a.example{rest}"
    if matches("https://a.example/*", url):
        check_url(url)
        assert rest == "" or rest.startswith(("/", "?", ":443"))


@table(
    ("url", "short"),
    [
        ("https://a.example/services/secret?x=1", "https://a.example/…"),
        ("https://a.example:8443?x", "https://a.example:8443/…"),
        ("https://a.example/", "https://a.example/"),
        ("https://a.example", "https://a.example"),
        ("", ""),
    ],
)
def test_its_path_may_be_secret(url: str, short: str) -> None:
    assert shortened(url) == short
