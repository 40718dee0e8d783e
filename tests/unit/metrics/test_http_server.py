from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric as Family

from coord_control.errors import EndpointNotBound
from coord_control.metrics.address import Address
from coord_control.metrics.families import Families
from coord_control.metrics.http_server import THREADS, MetricsServer, Page
from coord_control.metrics.subtasks import MAX_SUBTASKS
from tests.metrics_kit import read
from tests.patience import SECONDS, eventually

ANY = Address(port=0, is_named=True)


def page(subtasks: int) -> Iterable[Family]:
    families = Families()
    families.add("fleet_subtasks_left_out", subtasks)
    families.add("database_up", 1)
    return families.collect()


@contextlib.contextmanager
def serving(page: Page = page, address: Address = ANY) -> Iterator[Address]:
    server = MetricsServer(page, address)
    try:
        found = server.start()
        assert found is not None
        yield found
    finally:
        server.close()


def get(address: Address, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=SECONDS)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def coord_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("coord-metrics")}


def test_metrics_come_as_text_with_those_of_the_process() -> None:
    with serving() as address:
        status, headers, body = get(address)
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = read(body.decode())
    assert found.get("database_up") == 1
    assert b"process_resident_memory_bytes" in body


def test_openmetrics_and_compression_when_they_are_asked_for() -> None:
    with serving() as address:
        _, headers, body = get(
            address, Accept="application/openmetrics-text; version=1.0.0", Accept_Encoding="gzip, deflate"
        )
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert gzip.decompress(body).endswith(b"# EOF\n")


@pytest.mark.parametrize(("query", "subtasks"), [("", 0), ("?subtasks=7", 7), ("?subtasks=99999999", MAX_SUBTASKS)])
def test_subtasks_on_request_up_to_the_cap(query: str, subtasks: int) -> None:
    with serving() as address:
        _, _, body = get(address, f"/metrics{query}")
    assert read(body.decode()).get("fleet_subtasks_left_out") == subtasks


@pytest.mark.parametrize("wanted", ["-1", "x", "1.5"])
def test_a_number_of_subtasks_that_is_none_is_refused(wanted: str) -> None:
    with serving() as address:
        status, _, body = get(address, f"/metrics?subtasks={wanted}")
    assert status == 400
    assert f"up to {MAX_SUBTASKS}" in body.decode()


def test_only_the_names_that_are_asked_for() -> None:
    with serving() as address:
        _, _, body = get(address, "/metrics?name[]=coord_control_database_up")
    assert {sample.name for sample in read(body.decode()).samples} == {"coord_control_database_up"}


def test_other_paths() -> None:
    with serving() as address:
        assert get(address, "/healthz")[::2] == (200, b"ok\n")
        assert get(address, "/elsewhere")[0] == 404
        assert get(address, "/")[0] == 200


def test_targets_for_discovery_where_there_are_any() -> None:
    known: list[list[dict[str, Any]] | None] = [None, [{"targets": ["here:1"], "labels": {}}]]
    server = MetricsServer(page, ANY, targets=lambda: known.pop(0))
    address = server.start()
    assert address is not None
    try:
        assert get(address, "/targets")[0] == 503
        status, headers, body = get(address, "/targets")
    finally:
        server.close()
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == [{"targets": ["here:1"], "labels": {}}]
    with serving() as address:
        assert get(address, "/targets")[0] == 404


def test_a_page_that_cannot_be_made_is_an_answer_and_the_next_one_works() -> None:
    broken = [True]

    def page_of_a_job(subtasks: int) -> Iterable[Family]:
        if broken.pop() if broken else False:
            raise TimeoutError("the driver's loop has not answered")
        return page(subtasks)

    with serving(page_of_a_job) as address:
        status, _, body = get(address)
        assert (status, body) == (503, b"the driver's loop has not answered\n")
        assert get(address)[0] == 200


def test_scrapes_that_fail_are_said_once_and_so_is_their_end(caplog: pytest.LogCaptureFixture) -> None:
    left = [3]

    def page_of_a_job(subtasks: int) -> Iterable[Family]:
        left[0] -= 1
        if left[0] >= 0:
            raise TimeoutError("the driver's loop has not answered")
        return page(subtasks)

    with caplog.at_level(logging.WARNING, "coord_control.metrics"), serving(page_of_a_job) as address:
        statuses = [get(address)[0] for _ in range(5)]
        assert statuses == [503, 503, 503, 200, 200]
        failing, over = (record.getMessage() for record in caplog.records)
        assert "the driver's loop has not answered; scrapes get status 503 until they can" in failing
        assert over == "= metrics can be read again"
        left[0] = 1
        assert get(address)[0] == 503
        assert "has not answered" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nowhere"])
def test_the_version_of_python_is_nobodys_business(path: str) -> None:
    with serving() as address:
        assert get(address, path)[1]["server"] == "coord-control"
        with socket.create_connection((address.host, address.port), timeout=SECONDS) as client:
            client.sendall(b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 101 + b"\r\n")  # more than Python takes
            with client.makefile("rb") as answer:
                assert b"\r\nServer: coord-control\r\n" in answer.read()


@pytest.mark.parametrize("host", ["127.0.0.1:9404", "localhost:9404", "[::1]", "10.1.2.3:1", socket.gethostname()])
def test_on_loopback_addresses_and_names_of_this_machine_are_answered_to(host: str) -> None:
    with serving() as address:
        assert get(address, Host=host)[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/targets", "/healthz"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:9404", "127.0.0.1.evil.example", "[::1", "", "@"])
def test_on_loopback_foreign_names_are_refused(host: str, path: str) -> None:
    with serving() as address:
        status, _, body = get(address, path, Host=host)
    assert status == 400
    assert b"do not answer to the name" in body
    assert b"coord_control_" not in body


def test_beyond_loopback_any_name_will_do() -> None:
    with serving(address=Address("0.0.0.0", 0, is_named=True)) as address:
        assert get(Address(port=address.port), Host="exporter.streams.svc:9405")[0] == 200


def test_clients_that_say_nothing_do_not_keep_others_out() -> None:
    with serving() as address, contextlib.ExitStack() as stack:
        for _ in range(THREADS - 1):
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=SECONDS))
        assert get(address)[0] == 200


def test_more_clients_than_fit_are_hung_up_on_and_no_thread_is_added() -> None:
    with serving() as address, contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=SECONDS))
            for _ in range(2 * THREADS + 3)
        ]
        assert silent[-1].recv(1) == b""
        assert len(coord_threads()) == THREADS + 1


def test_the_end_waits_for_no_client_that_is_silent_and_leaves_no_thread() -> None:
    with contextlib.ExitStack() as stack:
        with serving() as address:
            silent = [
                stack.enter_context(socket.create_connection((address.host, address.port), timeout=SECONDS))
                for _ in range(2 * THREADS + 1)
            ]
            assert silent[-1].recv(1) == b"", "threads and queue are full"
        assert [each.recv(1) for each in silent] == [b""] * len(silent)
        eventually(lambda: not coord_threads())


def test_who_has_asked_before_the_end_still_gets_the_answer() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def page_of_a_job(subtasks: int) -> Iterable[Family]:
        is_asked.set()
        assert may_answer.wait(SECONDS)
        return page(subtasks)

    with socket.socket() as client:
        with serving(page_of_a_job) as address:
            client.settimeout(SECONDS)
            client.connect((address.host, address.port))
            client.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert is_asked.wait(SECONDS)
        may_answer.set()
        with client.makefile("rb") as answer:
            assert b"coord_control_database_up 1" in answer.read()


def test_nothing_is_left_after_the_end() -> None:
    with serving() as address:
        get(address)
    eventually(lambda: not coord_threads())
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address.host, address.port), timeout=SECONDS)


def test_to_end_it_twice_or_before_it_began_does_no_harm() -> None:
    server = MetricsServer(page, ANY)
    server.close()
    server.close()
    assert server.address is None


def test_a_port_that_the_user_named_and_is_taken_is_an_error() -> None:
    with serving() as address, pytest.raises(EndpointNotBound, match=f"port {address.port}"):
        MetricsServer(page, Address(port=address.port, is_named=True)).start()


def test_a_port_that_nobody_named_and_is_taken_is_replaced_by_a_free_one() -> None:
    with serving() as taken, serving(address=Address(port=taken.port)) as address:
        assert address.port not in (0, taken.port)
        assert get(address)[0] == 200


def test_a_named_port_is_had_as_soon_as_whoever_has_it_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = MetricsServer(page, Address(port=port, is_named=True))
        assert server.start(must=False) is None
    try:
        eventually(lambda: server.address is not None)
        assert get(Address(port=port))[0] == 200
    finally:
        server.close()


def test_to_wait_for_a_port_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = MetricsServer(page, Address(port=other.getsockname()[1], is_named=True))
        assert server.start(must=False) is None
        server.close()
    assert "coord-metrics-server" not in coord_threads()


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with serving(address=Address("::1", 0, is_named=True)) as address:
        assert get(address)[0] == 200
