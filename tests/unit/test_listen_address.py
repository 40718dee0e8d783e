from __future__ import annotations

import pytest

from coord_control.listen_address import KnownNames, asked_name, is_loopback, split_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("host:1", ("host", 1)),
        (" :8765 ", ("127.0.0.1", 8765)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:8765", None),
        ("host", None),
        ("host:65536", None),
        ("host:²", None),
        ("http://host:1", None),
    ],
)
def test_an_address_is_host_and_port_and_without_a_host_loopback(text: str, found: tuple[str, int] | None) -> None:
    assert split_address(text) == found


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Localhost:9404", "localhost"),
        ("[::1]:9404", "::1"),
        ("evil.example", "evil.example"),
        ("", None),
        ("[::1", None),
        ("localhost@evil.example", None),
    ],
)
def test_the_name_in_a_header(host: str, name: str | None) -> None:
    assert asked_name(host) == name


def test_addresses_localhost_and_allowed_names_are_known_and_others_are_not() -> None:
    names = KnownNames(["Jobs.Example.org"])
    assert all(name in names for name in ("localhost", "localhost.", "10.1.2.3", "::1", "jobs.example.org"))
    assert all(name not in names for name in (None, "", "evil.example", "127.0.0.1.evil.example", "localhost.evil"))


def test_who_can_reach_an_address() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::", "10.1.2.3")] == [
        *[True] * 3,
        *[False] * 3,
    ]
