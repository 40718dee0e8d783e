from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric as Family

from coord_control.errors import EndpointNotBound
from coord_control.metrics.address import Address
from coord_control.metrics.families import Families
from coord_control.metrics.serving import THREADS, MetricsServer, Page
from coord_control.metrics.subtasks import MAX_SUBTASKS
from tests.metrics_kit import read

SECONDS = 30.0
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


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
