"""Runs the job: the feeder, two queries, the desk; until the last day is processed or a stop is requested.

A visitor may keep the job running for longer: it then idles, and can be explored and saved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from coord_control.errors import JobClosed
from examples.flights import alerts, data
from examples.flights.airports import AirportFiles, by_airport_and_day, read_airports
from examples.flights.desk import Desk
from examples.flights.feeder import Feeder
from examples.flights.sinks import last_commit, read_file_sink
from examples.flights.summary import Check, Results, check

__all__ = ["JOB", "OPERATOR", "Demo", "Moment", "Options", "Outcome", "Visitor"]

PARALLELISM: Final = 4
JOB: Final = "flights"
OPERATOR: Final = "delay-threshold"
_QUERIES: Final = ("alerts", "airports")
_TICK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run; see ``--help``."""

    work: Path
    days: int
    days_per_epoch: int
    days_per_second: float
    budget: float
    shift_seconds: float
    chaos: float
    control: str | None  #: the URL of the control database, or None for ``COORD_CONTROL``
    port: int = 0  #: where subtasks reach the driver; 0 for any free port
    checkpoint_seconds: float | None = None  #: the interval of periodic checkpoints, or None for none


class Visitor(Protocol):
    """A component that uses the running job."""

    def job_runs(self) -> None:
        """Note that all queries have committed an epoch; called repeatedly."""

    @property
    def wants_job(self) -> bool:
        """Whether the job should keep running, idle, after the last day."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the running job at one moment."""

    seconds: float
    is_stopping: bool
    is_idle: bool  #: the last day has been processed
    days: int
    days_fed: int
    airports_day: int
    airports_flights: int
    status: cc.JobStatus


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the job."""

    last: Moment
    is_complete: bool  #: the last day has been processed
    epochs: Mapping[str, int]  #: the last committed epochs, by query
    results: Results
    checks: list[Check]


class Demo:
    """One run of the demo.

    Args:
        show: called several times a second with the state of the job.
        stop: set it to stop the job at the end of the current epochs.
        visitor: called while the job runs.
    """

    def __init__(
        self,
        options: Options,
        show: Callable[[Moment], None],
        stop: threading.Event,
        visitor: Visitor | None = None,
    ) -> None:
        self._options = options
        self._show = show
        self._stop = stop
        self._visitor = visitor
        self._began = time.monotonic()
        self._is_stopping = False
        self._done = threading.Event()  # the last day is through
        self._input, self._alerts, self._airports = (options.work / name for name in ("input", *_QUERIES))
        for folder in (self._input, self._airports):
            folder.mkdir(exist_ok=True)
        self._flights = data.load_flights()
        # Days that were fed by an earlier run stay, even if this one asks for fewer.
        self._days = max(options.days, len(list(self._input.glob("day-*"))))
        self._feeder = Feeder(self._flights, self._input, self._days, options.days_per_second)
        self._coordinator = alerts.ThresholdCoordinator()
        self._airport_files = AirportFiles(self._airports)

    def run(self, spark: SparkSession) -> Outcome:
        """Run the job to its end, then check its output.

        Raises:
            CoordControlError: the job failed.
        """
        options = self._options
        with cc.Job(
            JOB,
            spark,
            root=str(options.work / "jobs"),
            port=options.port,
            checkpoints=cc.CheckpointOptions(interval_seconds=options.checkpoint_seconds),
            control=options.control,
        ) as job:
            budget = job.live("budget", alerts.Budget(alerts_per_day=options.budget))
            self._start_queries(job, spark, budget)
            self._feeder.start()
            self._desk = Desk(budget, options.budget, options.shift_seconds)
            self._desk.start()
            threading.Thread(target=self._await_last_day, args=(spark,), name="last-day", daemon=True).start()
            last = self._follow(job)
            is_complete = self._done.is_set()
            self._desk.stop()
            self._feeder.stop()
            last = self._follow_stop(job) or last
        return self._outcome(last, is_complete)

    def _start_queries(self, job: cc.Job, spark: SparkSession, budget: cc.Live[alerts.Budget]) -> None:
        options = self._options
        operator = job.operator(
            OPERATOR,
            self._coordinator,
            parallelism=PARALLELISM,
            state=alerts.Carriers,
            down=[alerts.Thresholds],
            up=[alerts.Report],
            requests=[alerts.Current],
        )
        flights = self._stream(spark).withColumn("budget", budget.alerts_per_day)
        function = alerts.failing_sometimes(alerts.score, options.chaos) if options.chaos else alerts.score
        late = operator.apply(flights, function, schema=alerts.OUTPUT_SCHEMA, partition_by=["carrier"])
        job.start("alerts", late.writeStream.format("parquet").option("path", str(self._alerts)))
        visits = by_airport_and_day(self._stream(spark))
        job.start("airports", visits.writeStream.outputMode("update").foreachBatch(self._airport_files.write))

    def _stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(data.SPARK_SCHEMA).option("maxFilesPerTrigger", self._options.days_per_epoch)
        return reader.parquet(str(self._input))

    def _await_last_day(self, spark: SparkSession) -> None:
        self._feeder.join()
        for name in _QUERIES:
            while not self._stop.is_set():
                query = next((query for query in spark.streams.active if query.name == f"{JOB}:{name}"), None)
                try:
                    if query is not None:
                        query.processAllAvailable()
                        break
                except PySparkException:
                    pass  # its run has ended; the next one is to be asked
                time.sleep(_TICK_SECONDS)
        if not self._stop.is_set():
            self._done.set()

    def _follow(self, job: cc.Job) -> Moment:
        moment = self._moment(job.status())
        while True:
            job.await_termination(_TICK_SECONDS)
            try:
                moment = self._moment(job.status())
            except JobClosed:  # it was stopped through the control plane
                self._stop.set()
                return moment
            self._show(moment)
            if self._stop.is_set() or self._is_through(moment):
                return moment

    def _is_through(self, moment: Moment) -> bool:
        """Return whether the job is no longer needed."""
        if self._done.is_set():
            self._desk.stop()  # there are no epochs in which its changes would take effect
        if self._visitor is None:
            return self._done.is_set()
        if all(query.committed >= 0 for query in moment.status.queries):
            self._visitor.job_runs()
        return self._done.is_set() and not self._visitor.wants_job

    def _follow_stop(self, job: cc.Job) -> Moment | None:
        """Stop after the current epochs; return the last state of the job."""
        self._is_stopping = True
        stopping = threading.Thread(target=job.stop, name="stop", daemon=True)
        stopping.start()
        last = None
        while stopping.is_alive():
            try:
                last = self._moment(job.status())
            except JobClosed:
                break
            self._show(last)
            stopping.join(_TICK_SECONDS)
        stopping.join()
        return last

    def _moment(self, status: cc.JobStatus) -> Moment:
        files = self._airport_files
        return Moment(
            seconds=time.monotonic() - self._began,
            is_stopping=self._is_stopping,
            is_idle=self._done.is_set(),
            days=self._days,
            days_fed=self._feeder.fed,
            airports_day=files.last_day,
            airports_flights=files.flights,
            status=status,
        )

    def _outcome(self, last: Moment, is_complete: bool) -> Outcome:
        newest = {name: last_commit(self._checkpoint(name)) for name in _QUERIES}
        results = Results(
            alerts=read_file_sink(self._alerts, newest["alerts"], alerts.ARROW_SCHEMA),
            airports=read_airports(self._airports, newest["airports"]),
            plan=self._coordinator.state,
        )
        checks = check(self._flights, results, self._feeder.fed, is_complete)
        return Outcome(last, is_complete, {name: batch + 1 for name, batch in newest.items()}, results, checks)

    def _checkpoint(self, query: str) -> Path:
        # The newest lineage, if there is more than one.
        lineages = (self._options.work / "jobs" / JOB / "queries" / query).glob("lineage-*")
        return max(lineages) / "spark"
