"""The cost of a scrape: a driver with 10,000 subtasks, and a control database with 1,000 jobs.

Scraped over a real socket, as Prometheus does, while an epoch is running and an event waits before and behind the
barrier of every subtask. The driver runs without Spark (``rig.py``), which a scrape does not use.
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics_core import Metric as Family
from pydantic import BaseModel

from benchmarks.report import Goal, at_most, main, median
from benchmarks.rig import OPERATOR, Rig, attempt
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.coordinators import StatefulCoordinator
from coord_control.ids import QueryName
from coord_control.metrics.address import Address
from coord_control.metrics.database_collector import DatabaseCollector
from coord_control.metrics.driver import driver_families
from coord_control.metrics.http_server import MetricsServer, Page
from coord_control.metrics.observer import Observer
from coord_control.metrics.snapshot import DriverSnapshot
from coord_control.metrics.subtasks import MAX_SUBTASKS
from coord_control.protocol.job_facts import JobFacts, QueryFacts
from coord_control.protocol.messages import Answer, Hello
from coord_control.protocol.status import JobStatus, QueryStatus, operator_statuses
from coord_control.spark.job.job_metrics import endpoint_snapshot, writer_snapshot
from coord_control.spark.wire.frame_codec import PROTOCOL_VERSION
from coord_control.storage.records import (
    GatewayRecord,
    JobRegistration,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
)
from coord_control.storage.store import ControlStore

__all__ = ["benchmark"]

_GOAL_MILLISECONDS: Final = 200.0
_QUERY: Final = QueryName("query")
_SECONDS: Final = 60.0


class _Number(BaseModel):
    number: int = 0


class _Numbers(BaseModel):
    pass


class _Coordinator(StatefulCoordinator[_Numbers]):
    def __init__(self) -> None:
        super().__init__(_Numbers())


class _Worker:
    """A connection that ignores its answers."""

    def answer(self, answer: Answer) -> None:
        pass


def benchmark(is_quick: bool) -> tuple[Sequence[Goal], dict[str, Any]]:
    """Scrape a driver without and with individual subtasks, and the exporter."""
    subtasks, jobs, repeats = (500, 20, 3) if is_quick else (10_000, 1_000, 40)
    numbers: dict[str, Any] = {"subtasks": subtasks, "jobs": jobs, "repeats": repeats}
    with _driver(subtasks) as page:
        numbers["driver"] = _measure(page, "/metrics", repeats)
        numbers["driver, single subtasks"] = _measure(page, f"/metrics?subtasks={MAX_SUBTASKS}", repeats)
    with _exporter(jobs) as page:
        numbers["exporter"] = _measure(page, "/metrics", max(1, repeats // 4))
    names = {
        "driver": f"{subtasks:,} subtasks",
        "driver, single subtasks": f"... with {MAX_SUBTASKS:,} of them one by one",
    }
    goals = [at_most(name, numbers[key]["median_ms"], _GOAL_MILLISECONDS, "ms") for key, name in names.items()]
    return goals, numbers


def _measure(page: Page, path: str, repeats: int) -> dict[str, Any]:
    server = MetricsServer(page, Address(port=0, is_named=True))
    address = server.start()
    assert address is not None
    try:
        size = len(_scrape(address, path))  # the first one also imports and connects
        times = [_time(lambda: _scrape(address, path)) for _ in range(repeats)]
    finally:
        server.close()
    seconds, cpu = [each for each, _ in times], [each for _, each in times]
    return {
        "median_ms": median(seconds) * 1000,
        "slowest_ms": max(seconds) * 1000,
        "cpu_ms": median(cpu) * 1000,
        "bytes": size,
    }


def _time(call: Callable[[], object]) -> tuple[float, float]:
    # The client is in this process, too, but it only reads.
    began, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - used


def _scrape(address: Address, path: str) -> bytes:
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=_SECONDS)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body


@contextmanager
def _driver(subtasks: int) -> Iterator[Page]:
    coordinator = _Coordinator()
    with Rig.running(coordinator, subtasks, down=[_Number]) as rig:
        generation = rig.runtime.generation
        rig.runtime.call(lambda core, now: core.hello(Hello(attempt(generation, 0, 0, 1)), _Worker(), now))
        _until(lambda: _status(rig).operators[0].gateways[0].is_open is False)
        for subtask in range(subtasks):
            coordinator.context.send(subtask, _Number(number=subtask))
        _until(lambda: _status(rig).operators[0].blocked_by_epochs == subtasks)
        observer = Observer()

        def page(limit: int) -> Iterable[Family]:
            return driver_families(_snapshot(rig, observer, subtasks), limit)

        yield page


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the driver has not come so far"
        time.sleep(0.01)


def _status(rig: Rig) -> JobStatus:
    operators = rig.runtime.read(lambda core, now: operator_statuses(core, {OPERATOR: _QUERY}, now), _SECONDS)
    query = QueryStatus(_QUERY, "running", -1, 0, None)
    return JobStatus("benchmark", rig.runtime.generation, (query,), operators, 0, rig.runtime.writer.writes)


def _snapshot(rig: Rig, observer: Observer, subtasks: int) -> DriverSnapshot:
    runtime = rig.runtime
    status = QueryStatus(_QUERY, "running", -1, 0, None)
    query = QueryFacts(name=_QUERY, query_id="", lineage="0001", checkpoint="", operators=(OPERATOR,), status=status)
    facts = JobFacts(
        name="benchmark",
        root="",
        folder="",
        generation=runtime.generation,
        host="",
        pid=0,
        started_at_seconds=0.0,
        process_started=0.0,
        version="",
        python_version="",
        spark_version="",
        master="",
        address=rig.address.host,
        port=rig.address.port,
        tls=False,
    )
    return DriverSnapshot(
        facts=facts,
        protocol_version=PROTOCOL_VERSION,
        is_up=True,
        status=_status(rig),
        queries=(query,),
        parallelism={OPERATOR: subtasks},
        feeds={},
        observed=observer.observed(),
        endpoint=endpoint_snapshot(runtime.endpoint.stats()),
        writer=writer_snapshot(runtime.writer),
        callbacks_waiting=0,
        recoveries_under_way=0,
    )


@contextmanager
def _exporter(jobs: int) -> Iterator[Page]:
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as folder:
        settings = ControlSettings.load(f"sqlite:///{Path(folder) / 'control.db'}")
        with closing(settings.open_database("benchmark")) as database:
            store = ControlStore(database)
            for number in range(jobs):
                _put_job(store, f"job-{number:04}")
        with ControlClient(settings=settings) as client:
            yield DatabaseCollector(client, cache_seconds=0.0).page


def _put_job(store: ControlStore, name: str) -> None:
    store.jobs.register(
        JobRegistration(
            name=name,
            root="/jobs",
            folder=f"/jobs/{name}",
            generation=1,
            host="here",
            pid=1,
            lease_seconds=3600.0,
            queries=(QueryRecord(name="q", state="running"),),
            operators=(OperatorRecord(uid="op", query="q", parallelism=10),),
        )
    )
    gateways = tuple(GatewayRecord(subtask=subtask) for subtask in range(10))
    operator = LiveOperator(uid="op", epoch=1, gateways=gateways)
    store.jobs.heartbeat(name, 1, LiveStatus(queries=(LiveQuery(name="q"),), operators=(operator,)))


if __name__ == "__main__":
    sys.exit(main("metrics", benchmark))
