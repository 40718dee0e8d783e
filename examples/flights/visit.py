"""What the demo does in Dagster: waits for its web pages, materializes the job's savepoint, and prints the addresses.

Threads: its own; all output goes through ``say``, which any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote

from examples.flights.commands import show_job
from examples.flights.graphql import DagsterDoesNotAnswer, DagsterRefuses, Location
from examples.flights.server import EVENT_JOB, DagsterServer

__all__ = ["SavepointRun", "Visit", "addresses"]

_SAVEPOINT: Final = ("flights", "savepoint")
_STEP: Final = "flights__savepoint"
_LABEL: Final = "by-dagster"
_LOAD_SECONDS: Final = 120.0
_RUN_SECONDS: Final = 180.0
_LOOK_SECONDS: Final = 0.5
_ENDED: Final = ("SUCCESS", "FAILURE", "CANCELED")


class _GivenUp(Exception):
    """The demo is ending, or Dagster has ended."""


@dataclass(frozen=True, slots=True)
class SavepointRun:
    """A savepoint taken through Dagster."""

    id: int
    path: str
    run_id: str
    seconds: float  #: the duration of the savepoint itself
    size_bytes: int


class Visit(threading.Thread):
    """Takes one savepoint of the running job through Dagster.

    Args:
        control: the URL of the job's control database.
        job_stops: set when the job must end.
        stays: whether the job keeps running after the savepoint.

    Attributes:
        result: the savepoint, once it is complete.
        problem: why there is no savepoint.
        has_failed: whether the savepoint failed although the job was running.
        urls: the pages to open, once Dagster has loaded.
    """

    def __init__(
        self,
        server: DagsterServer,
        control: str,
        say: Callable[[str], None],
        job_stops: threading.Event,
        *,
        stays: bool,
    ) -> None:
        super().__init__(name="dagster", daemon=True)
        self.result: SavepointRun | None = None
        self.problem: str | None = None
        self.has_failed = False
        self.control = control
        self.urls: dict[str, str] = {}
        self._server = server
        self._say = say
        self._job_stops = job_stops
        self._stays = stays
        self._job_runs = threading.Event()
        self._stop_requested = threading.Event()

    def run(self) -> None:
        try:
            location = self._await_location()
            self.urls = addresses(self._server.url, location)
            self._say(self._where())
            self._await(self._job_runs.is_set, None)
            self.result = self._take_savepoint(location)
            done = self.result
            self._say(f"Dagster: savepoint {done.id}, {done.size_bytes:,} bytes in {done.seconds:.2f} s: {done.path}")
        except _GivenUp as reason:
            self.problem = str(reason)
        except (DagsterDoesNotAnswer, DagsterRefuses) as error:
            self.problem = f"{error}; more in {self._server.log}"
            self.has_failed = "run" in self.urls and not self._job_stops.is_set()
            self._say(f"Dagster: {self.problem}")

    def job_runs(self) -> None:
        """Note that the job can take a savepoint now; may be called repeatedly."""
        self._job_runs.set()

    @property
    def wants_job(self) -> bool:
        """Whether the savepoint is still to be taken, or the user wants to explore the job."""
        return self.is_alive() or (self._stays and self.problem is None)

    def facts(self) -> dict[str, Any]:
        """Return the result for JSON, without the addresses, which are dead when the demo has ended."""
        savepoint = None if self.result is None else asdict(self.result)
        return {"savepoint": savepoint, "problem": self.problem}

    def leave(self) -> None:
        """Stop waiting, and let Dagster end; may be called again."""
        if self.is_alive():
            self._stop_requested.set()
            self.join()
        self._server.end()

    def _await_location(self) -> Location:
        found: list[Location] = []

        def is_loaded() -> bool:
            try:
                location = self._server.api.location()
            except DagsterDoesNotAnswer:
                return False  # it is starting
            if location is not None:
                found.append(location)
            return location is not None

        self._await(is_loaded, _LOAD_SECONDS)
        return found[0]

    def _take_savepoint(self, location: Location) -> SavepointRun:
        api = self._server.api
        config = {"ops": {_STEP: {"config": {"label": _LABEL}}}}
        run = api.materialize(location, _SAVEPOINT, config)
        self.urls["run"] = f"{self._server.url}/runs/{run}"
        self._say(f"Dagster: run {run} takes a savepoint")
        self._await(lambda: api.run_status(run) in _ENDED, _RUN_SECONDS)
        facts = api.metadata(_SAVEPOINT, run)
        if not facts:
            raise DagsterRefuses(f"run {run} has ended as {api.run_status(run)}: {self.urls['run']}")
        return _savepoint_run(run, facts)

    def _await(self, is_done: Callable[[], bool], seconds: float | None) -> None:
        give_up = None if seconds is None else time.monotonic() + seconds
        while not is_done():
            if self._stop_requested.wait(_LOOK_SECONDS):
                raise _GivenUp("the demo was stopped")
            if self._server.has_ended:
                raise DagsterRefuses("it has ended by itself")
            if give_up is not None and time.monotonic() > give_up:
                raise DagsterRefuses(f"nothing has come of it within {seconds:g} s")

    def _where(self) -> str:
        urls = self.urls
        lines = [
            f"Dagster: {urls['dagster']}",
            f"  Materialize the savepoint, its metadata and plots: {urls['savepoint']}",
            f"  the checks of the job:                             {urls['checks']}",
            f"  a schedule to switch on, a savepoint each minute:  {urls['schedule']}",
            f"  a control event, in force with the next epoch:     {urls['send_control_event']}",
            f"  verify a savepoint, or stop the job:               {urls['jobs']}",
            f"  a page about each new savepoint, made by itself:   {urls['report']}",
            f"In another terminal: {show_job(self.control)}",
        ]
        return "\n".join(lines)


def addresses(url: str, location: Location) -> dict[str, str]:
    """Return the pages to open, by name."""
    place = location.name if location.repository == "__repository__" else f"{location.repository}@{location.name}"
    below = f"{url}/locations/{quote(place, safe='@')}"
    return {
        "dagster": url,
        "savepoint": f"{url}/assets/flights/savepoint",
        "checks": f"{url}/assets/flights/checkpoint?view=checks",
        "schedule": f"{below}/schedules/flights_every_minute",
        "jobs": f"{below}/jobs",
        "send_control_event": f"{below}/jobs/{EVENT_JOB}/playground",
        "report": f"{url}/assets/flights/savepoint_report",
    }


def _savepoint_run(run: str, facts: dict[str, Any]) -> SavepointRun:
    prefix = "coord_control/"
    return SavepointRun(
        id=int(facts[f"{prefix}checkpoint_id"]),
        path=facts[f"{prefix}path"],
        run_id=run,
        seconds=facts[f"{prefix}duration_seconds"],
        size_bytes=facts[f"{prefix}size_bytes"],
    )
