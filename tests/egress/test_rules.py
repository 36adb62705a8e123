"""Which URLs and addresses the server may connect to: one line a rule."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from penstock.errors import EgressRefused, InvalidUrl
from penstock.protocol.outbound import Policy, is_public, parse_networks, parse_url

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
    "192.0.1.1", "198.17.255.255", "198.20.0.1", "223.255.255.255", "168.63.129.17",
    "2606:4700::1111", "2a00::1", "2001:4860::8888", "2620:4f:8000::1",
]  # fmt: skip
REFUSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255",
    "100.100.100.200",  # a cloud's metadata
    "127.0.0.1", "127.255.255.254", "169.254.0.1", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.7", "224.0.0.1",
    "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::2", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:8.8.8.8", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::",
    "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1",
    "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1",
    "fec0::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_reached(text: str) -> None:
    assert is_public(ip_address(text))
    Policy().check_address(ip_address(text), parse_url("https://example.com"))


@pytest.mark.parametrize("text", REFUSED)
def test_every_other_address_is_refused(text: str) -> None:
    with pytest.raises(EgressRefused, match="egress_networks"):
        Policy().check_address(ip_address(text), parse_url("https://example.com"))


@pytest.mark.parametrize(
    ("networks", "allowed", "refused"),
    [
        (["10.0.0.0/8"], "10.1.2.3", "11.0.0.1 172.16.0.1 ::ffff:10.1.2.3"),
        (["fd00::/8"], "fd12::1", "fc00::1"),
        (["64:ff9b::/96"], "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1 64:ff9b::127.0.0.1"),
        (["64:ff9b::/96", "10.0.0.0/8"], "64:ff9b::10.0.0.1", "64:ff9b::192.168.0.1"),
        (["::ffff:0:0/96"], "::ffff:8.8.8.8", "::ffff:127.0.0.1"),
        (["2002::/16"], "2002:808:808::1", "2002:7f00:1::1 2002:a9fe:a9fe::1"),
        (["2001::/32"], "2001:0:1::f7f7:f7f7", "2001:0:1::80ff:fffe"),  # inverted at the end
        (["127.0.0.0/8"], "127.0.0.1", "::1"),
    ],
)
def test_a_setting_allows_a_network_but_not_what_hides_in_it(
    networks: list[str], allowed: str, refused: str
) -> None:
    policy = Policy(parse_networks(networks))
    target = parse_url("https://example.com")
    policy.check_address(ip_address(allowed), target)
    for text in refused.split():
        if text != "11.0.0.1":  # public anyway
            with pytest.raises(EgressRefused):
                policy.check_address(ip_address(text), target)


@pytest.mark.parametrize(
    ("url", "address", "development", "allowed"),
    [
        ("https://a.example", "127.0.0.1", False, False),
        ("https://a.example", "127.0.0.1", True, True),
        ("https://a.example", "10.0.0.1", True, False),
        ("http://a.example", "127.0.0.1", False, False),
        ("http://a.example", "127.0.0.1", True, True),
        ("http://a.example", "::1", True, True),
        ("http://a.example", "::ffff:127.0.0.1", True, False),
        ("http://a.example", "8.8.8.8", False, False),
        ("http://a.example", "8.8.8.8", True, False),
    ],
)
def test_plain_http_goes_to_loopback_and_only_in_development(
    url: str, address: str, development: bool, allowed: bool
) -> None:
    policy = Policy(development=development)
    if allowed:
        policy.check_address(ip_address(address), parse_url(url))
    else:
        with pytest.raises(EgressRefused):
            policy.check_address(ip_address(address), parse_url(url))


def test_an_allowed_network_is_still_not_spoken_to_in_plain_http() -> None:
    policy = Policy(parse_networks(["10.0.0.0/8"]), development=True)
    with pytest.raises(EgressRefused, match="egress_http"):
        policy.check_address(ip_address("10.0.0.1"), parse_url("http://a.example"))


ALL = ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize(
    ("networks", "allowed", "refused"),
    [
        (["10.0.0.0/8"], "10.1.2.3", "11.0.0.1 172.16.0.1 127.0.0.1 ::ffff:10.1.2.3"),
        (["192.168.0.0/16", "fd00::/8"], "192.168.1.5 fd12::1", "fc00::1 10.0.0.1 fe80::1"),
        (["127.0.0.0/8"], "127.0.0.1", "::1 8.8.8.8 ::ffff:127.0.0.1"),
        (["100.64.0.0/10"], "100.64.0.1", "100.100.100.200"),
        (["64:ff9b::/96"], "", "64:ff9b::10.0.0.1 64:ff9b::8.8.8.8 64:ff9b::127.0.0.1"),
        (["64:ff9b::/96", "10.0.0.0/8"], "64:ff9b::10.0.0.1", "64:ff9b::192.168.0.1"),
        # Not even a network that holds them all: they are public, or trust whoever asks.
        (ALL, "10.0.0.1 172.16.0.1 192.168.0.1 fd12::1", "8.8.8.8 1.1.1.1 2606:4700::1111"),
        (ALL, "127.0.0.1 ::1", "169.254.169.254 100.100.100.200 168.63.129.16 192.0.0.192 0.0.0.0"),
        (ALL, "::ffff:10.0.0.1", "fd00:ec2::254 fd20:ce::254 fe80::1 ::ffff:169.254.169.254"),
        (ALL, "", "64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1"),
    ],
)
def test_plain_http_goes_to_private_networks_that_are_named(
    networks: list[str], allowed: str, refused: str
) -> None:
    target = parse_url("http://a.example")
    policy = Policy(parse_networks(networks), http=True)
    policy.check_url(target)
    for text in allowed.split():
        policy.check_address(ip_address(text), target)
    for text in [*refused.split(), *(text for text in PUBLIC)]:
        with pytest.raises(EgressRefused, match="plain http"):
            policy.check_address(ip_address(text), target)
    for text in (*allowed.split(), *refused.split()):
        with pytest.raises(EgressRefused, match="plain http"):
            Policy(parse_networks(networks)).check_address(ip_address(text), target)


@pytest.mark.parametrize("text", REFUSED)
def test_plain_http_without_a_network_goes_nowhere(text: str) -> None:
    policy, target = Policy(http=True), parse_url("http://a.example")
    with pytest.raises(EgressRefused, match="egress_networks"):
        policy.check_url(target)
    with pytest.raises(EgressRefused, match="egress_networks"):
        policy.check_address(ip_address(text), target)


def test_a_literal_address_is_judged_with_its_url() -> None:
    policy = Policy(parse_networks(["192.168.0.0/16"]), http=True)
    policy.check_url(parse_url("http://192.168.0.7:4437/v1/table/t"))
    for url in ("http://10.0.0.1:4437/", "http://169.254.169.254/", "http://8.8.8.8/"):
        with pytest.raises(EgressRefused, match="plain http"):
            policy.check_url(parse_url(url))


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://example.com", "https://example.com", "/"),
        ("https://Example.COM:443/A?b=c", "https://example.com", "/A?b=c"),
        ("https://example.com:8443/a%20b", "https://example.com:8443", "/a%20b"),
        ("http://127.0.0.1:4437/x", "http://127.0.0.1:4437", "/x"),
        ("https://[2606:4700::0:1111]/", "https://[2606:4700::1111]", "/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example", "/"),
        ("https://a_b.example.", "https://a_b.example.", "/"),
    ],
)
def test_urls_are_taken_apart(url: str, origin: str, path: str) -> None:
    target = parse_url(url)
    assert (target.origin, target.path) == (origin, path)
    assert parse_url(target.url) == target


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "//example.com/", "/path", "ftp://example.com/", "file:///etc/passwd",
        "gopher://example.com/", "javascript:alert(1)", "https://", "https:///x", "https://:443/",
        "https://user@example.com/", "https://user:pass@example.com/", "https://@example.com/",
        "https://example.com/#part", "https://example.com/#", "https://example.com/a b",
        "https://example.com/\r\nX: y", "https://example.com/\0", "https://example.com/\t",
        " https://example.com/", "https://example.com/é", "https://bücher.example/",
        "https://example.com/%zz", "https://example.com/%4", "https://example.com:/",
        "https://example.com:0/", "https://example.com:65536/", "https://example.com:x/",
        "https://example.com:22/", "https://example.com:25/", "https://example.com:80/",
        "http://example.com:443/", "https://127.1/", "https://0x7f.0.0.1/", "https://2130706433/",
        "https://0177.0.0.1/", "https://1.2.3.4.5/", "https://[::1%25eth0]/", "https://[::1/",
        "https://-a.example/", "https://a..example/", "https://a%2eexample/", "https://a\\b/",
        "https://" + "a" * 64 + ".example/", "https://example.com/" + "a" * 2048,
        "https://example.com@evil.example/", "https://[v1.a]/", 'https://example.com/"',
    ],
)  # fmt: skip
def test_urls_that_are_not_used(url: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(url)
