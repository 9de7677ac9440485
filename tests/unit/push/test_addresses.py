"""What `tickwheel push` may call: nothing that leads inside, however it is written."""

from __future__ import annotations

import doctest
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel_push.http import addresses
from tickwheel_push.http.addresses import (
    AddressRefused,
    Allowed,
    is_global,
    location_of,
    networks_of,
    unwrapped,
)

INSIDE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "2001:db8::1",
    "4000::1",
    "64:ff9b:1::1",
    # IPv4 inside of IPv6: mapped, compatible, NAT64, 6to4, Teredo.
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "::10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:c0a8:101::1",
    "2001:0:7f00:1::",
]
OUTSIDE = [
    "1.1.1.1",
    "192.0.32.7",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
    "2002:101:101::1",
]


@table("text", INSIDE)
def test_an_address_that_leads_inside_is_refused(text: str) -> None:
    address = ip_address(text)
    assert not is_global(address)
    with pytest.raises(AddressRefused, match="not a public address"):
        Allowed().check([ip_address("1.1.1.1"), address])


@table("text", OUTSIDE)
def test_a_public_address_is_allowed(text: str) -> None:
    Allowed().check([ip_address(text)])


def test_a_network_can_be_allowed_whichever_way_its_addresses_are_written() -> None:
    allowed = Allowed(networks=networks_of(["127.0.0.0/8", "fd00::/8"]))
    allowed.check(map(ip_address, ["127.0.0.1", "::ffff:127.0.0.1", "fd00::7", "1.1.1.1"]))
    with pytest.raises(AddressRefused):
        allowed.check([ip_address("10.0.0.1")])


@given(st.ip_addresses(v=4))
def test_every_way_to_hide_ipv4_is_judged_as_what_it_hides(inner: IPv4Address) -> None:
    number = int(inner)
    hidden = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
    ]
    assert [unwrapped(address) for address in hidden] == [inner] * 3
    assert {is_global(address) for address in hidden} == {is_global(inner)}


@table(
    "url",
    [
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://example.com@127.0.0.1/",
        "https://127.0.0.1\\@example.com/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://017700000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.01/",
        "https://256.0.0.1/",
        "https://[::1%25lo]/",
        "https://[::1/",
        "https://[localhost]/",
        "https://exa mple.com/",
        "https://example.com/a b",
        "https://example.com/\r\nhost: inside",
        "https://example.com/#part",
        "https://example.com:/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:443:80/",
        "https://ex\u00e4mple.com/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://example..com/",
        "https://-example.com/",
        "https://example.com./",
        "https:///path",
        "https:example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "",
        "https://" + "a" * 2_050,
    ],
)
def test_what_programs_could_read_differently_is_no_url(url: str) -> None:
    with pytest.raises(AddressRefused):
        location_of(url)


def test_a_url_in_its_parts() -> None:
    location = location_of("HTTPS://Hooks.Example.COM/in/1?a=%20b")
    assert (location.scheme, location.host, location.port) == ("https", "hooks.example.com", 443)
    assert location.target == "/in/1?a=%20b"
    assert location.authority == "hooks.example.com"
    assert location_of("https://example.com:8443").authority == "example.com:8443"
    assert location_of("https://example.com?x=1").target == "/?x=1"
    assert location_of("https://[2606:4700::1111]:8443/").authority == "[2606:4700::1111]:8443"
    assert location_of("http://example.com:80/").authority == "example.com"


def test_https_on_usual_ports_unless_more_is_allowed() -> None:
    assert Allowed().location("https://example.com/").port == 443
    for url in ("http://example.com/", "https://example.com:22/"):
        with pytest.raises(AddressRefused, match=r"--"):
            Allowed().location(url)
    assert Allowed(http=True).location("http://example.com/").port == 80
    assert Allowed(ports=frozenset({8443})).location("https://example.com:8443/").port == 8443


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com/{text}"):
        try:
            location = location_of(url)
        except AddressRefused:
            continue
        assert location.host
        assert location.target.startswith("/")
        assert location_of(f"{location.scheme}://{location.authority}{location.target}") == location


def test_the_examples() -> None:
    assert doctest.testmod(addresses).failed == 0
