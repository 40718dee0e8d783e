from __future__ import annotations

import pytest

from coord_control.errors import Fault, MetricsAddressInvalid
from coord_control.metrics.address import DRIVER_PORT, METRICS_VARIABLE, Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9404", "127.0.0.1", 9404),
        (":9500", "127.0.0.1", 9500),
        (" 0.0.0.0:0 ", "0.0.0.0", 0),
        ("driver-1.example:65535", "driver-1.example", 65535),
        ("[::1]:9404", "::1", 9404),
    ],
)
def test_an_address_is_host_and_port_and_without_a_host_loopback(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port, is_named=True)
    assert Address.parse(str(Address.parse(text))) == Address.parse(text)


@pytest.mark.parametrize(
    "text", ["", "9404", "host", "host:", "host:x", ":65536", ":²", ":٣", "a b:1", "http://host:1", "::1:9404"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(MetricsAddressInvalid, match=r"give HOST:PORT, for example") as raised:
        Address.parse(text)
    assert raised.value.fault is Fault.USER


def test_a_driver_serves_on_loopback_unless_it_is_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METRICS_VARIABLE, raising=False)
    assert Address.of_driver(None) == Address("127.0.0.1", DRIVER_PORT, is_named=False)
    assert Address.of_driver("0.0.0.0:1") == Address("0.0.0.0", 1, is_named=True)
    assert Address.of_driver("none") is None


def test_the_environment_says_it_when_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_VARIABLE, "None")
    assert Address.of_driver(None) is None
    assert Address.of_driver(":1") == Address("127.0.0.1", 1, is_named=True)
    monkeypatch.setenv(METRICS_VARIABLE, "")
    assert Address.of_driver(None) == Address()
    monkeypatch.setenv(METRICS_VARIABLE, "nonsense")
    with pytest.raises(MetricsAddressInvalid):
        Address.of_driver(None)


def test_who_listens_at_all_addresses_is_found_under_the_name_of_its_machine() -> None:
    assert str(Address("0.0.0.0", 9404).seen_from_elsewhere("driver-1")) == "driver-1:9404"
    assert str(Address("::", 9404).seen_from_elsewhere("driver-1")) == "driver-1:9404"
    assert str(Address("127.0.0.1", 9404).seen_from_elsewhere("driver-1")) == "127.0.0.1:9404"
