"""A real ``dagster dev`` for tests: webserver, daemon, code server and run workers, as a user has them.

It listens on 127.0.0.1 only, keeps everything below the folder that it is given, and ends with all of its processes:
a keeper runs them in a session of their own, which is killed when the pipe to it is closed, also by the death of the
test. What a test asks goes through the GraphQL API, as the pages do; nothing here looks into Dagster's files.

Threads: the test's own; every question waits for its answer.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests import dagster_queries as queries
from tests.patience import SECONDS
from tests.places import CHECKOUT

__all__ = ["DONE", "SETTINGS", "Check", "DagsterDev", "Entry", "Run", "dagster_dev"]

DONE: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
#: Whatever is waited for must happen; a test that hangs ends here, with the log.

_LOCATION: Final = "definitions.py"
_REPOSITORY: Final = "__repository__"
#: Short: its home is removed with it, so there is nothing to finish.
_GRACE_SECONDS: Final = 1.0
#: Each look costs the webserver more than the test.
_LOOK_SECONDS: Final = 1.0
# Runs are launched at once instead of by the queue's next look, dead workers are found soon; a run is retried when its
# tags say so.
SETTINGS: Final = """
nux:
  enabled: false
telemetry:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
run_monitoring:
  enabled: true
  poll_interval_seconds: 1
  start_timeout_seconds: 120
  cancel_timeout_seconds: 60
run_retries:
  enabled: true
  max_retries: 0
"""
_T = TypeVar("_T")


class DagsterSaysNo(AssertionError):
    """An answer that is an error."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as it is now; times are seconds since the epoch."""

    id: str
    status: str
    tags: Mapping[str, str]
    created: float
    started: float | None
    ended: float | None

    @property
    def is_done(self) -> bool:
        return self.status in DONE


@dataclass(frozen=True, slots=True)
class Entry:
    """A materialization or an observation of an asset; ``run_id`` is empty when no run made it."""

    run_id: str
    seconds: float
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """The newest evaluation of an asset check that counts."""

    name: str
    passed: bool | None  #: None: there is none
    description: str
    metadata: Mapping[str, Any]


class DagsterDev:
    """``dagster dev`` with one code location.

    Args:
        folder: of its own; gets ``definitions.py``, the home, and the log.
        code: the code location, as Python.
        environment: for all of its processes, on top of this one's.
    """

    def __init__(self, folder: Path, code: str, environment: Mapping[str, str]) -> None:
        home = folder / "dagster_home"
        home.mkdir(parents=True)
        (home / "dagster.yaml").write_text(SETTINGS)
        (folder / _LOCATION).write_text(textwrap.dedent(code))
        self.log = folder / "dagster.log"
        self.url = f"http://127.0.0.1:{_free_port()}"
        self._folder = folder
        self._environment = {
            **os.environ,
            **environment,
            "DAGSTER_HOME": str(home),
            "DAGSTER_EVENT_LOG_CONSUMER_DAEMON_INTERVAL_SECONDS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        keeper = [sys.executable, "-m", "examples.flights.keeper", str(_GRACE_SECONDS)]
        dev = [sys.executable, "-m", "dagster", "dev", "-f", _LOCATION, "-h", "127.0.0.1"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*keeper, *dev, "-p", self.url.rpartition(":")[2]],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
            )
        try:
            self.wait(self._is_loaded)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all of its processes."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """One question to the GraphQL API.

        Raises:
            OSError: nobody is there (yet).
            DagsterSaysNo: the question is wrong.
        """
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS) as response:
            answer = json.load(response)
        if answer.get("errors"):
            raise DagsterSaysNo(str(answer["errors"]))
        return dict(answer["data"])

    def wait(self, look: Callable[[], _T | None]) -> _T:
        """Look until there is something; ``OSError`` counts as nothing."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                found = look()
            except OSError as error:
                found, trouble = None, repr(error)
            else:
                trouble = ""
            if found:
                return found
            assert self._process is not None, "it is not running"
            assert self._process.poll() is None, f"dagster dev has ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"this did not happen in time {trouble}\n{self.tail()}"
            time.sleep(_LOOK_SECONDS)

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    # Runs.

    def materialize(self, *assets: str, config: Mapping[str, Any] | None = None, **tags: str) -> str:
        """Launch a run that materializes assets, named like ``flights/savepoint``; its id."""
        keys = [{"path": asset.split("/")} for asset in assets]
        return self._launch(
            {"pipelineName": "__ASSET_JOB", "assetSelection": keys, "assetCheckSelection": []}, config, tags
        )

    def launch(self, job: str, config: Mapping[str, Any] | None = None, **tags: str) -> str:
        """Launch a run of a job; its id."""
        return self._launch({"pipelineName": job}, config, tags)

    def reexecute(self, run: str, strategy: str = "FROM_FAILURE") -> str:
        """Launch a run again: ``FROM_FAILURE``, or ``ALL_STEPS``; the new one's id."""
        return _launched(self.ask(queries.REEXECUTE, params={"parentRunId": run, "strategy": strategy})["made"])

    def terminate(self, run: str) -> None:
        """As the button does: the worker is interrupted."""
        answer = self.ask(queries.TERMINATE, id=run)["ended"]["__typename"]
        if answer != "TerminateRunSuccess":
            raise DagsterSaysNo(answer)

    def run(self, run: str) -> Run:
        """A run, now."""
        return _run(self.ask(queries.RUN, id=run)["run"])

    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        return [_run(each) for each in self.ask(queries.RUNS)["runs"]["results"]]

    def wait_run(self, run: str) -> Run:
        """Wait until a run has ended."""

        def ended() -> Run | None:
            found = self.run(run)
            return found if found.is_done else None

        return self.wait(ended)

    def messages(self, run: str) -> list[str]:
        """Its log, a line for each event; errors with their cause."""
        return [_line(event) for event in self.ask(queries.MESSAGES, id=run)["logs"]["events"]]

    def wait_message(self, run: str, *patterns: str) -> re.Match[str]:
        """Wait until a line of its log matches one of the patterns; a run that ended without it is an error."""

        def look() -> re.Match[str] | None:
            is_done = self.run(run).is_done
            lines = self.messages(run)
            found = next((hit for line in lines for pattern in patterns if (hit := re.search(pattern, line))), None)
            assert found or not is_done, "\n".join(lines)
            return found

        return self.wait(look)

    def worker(self, run: str) -> int:
        """The process of a run that has been launched."""
        return int(self.wait_message(run, r"Started process for run \(pid: (\d+)\)")[1])

    # Assets.

    def materializations(self, asset: str) -> list[Entry]:
        """All of an asset, the oldest first."""
        return self._entries(asset, "assetMaterializations")

    def observations(self, asset: str) -> list[Entry]:
        """All of an asset, the oldest first."""
        return self._entries(asset, "assetObservations")

    def checks(self, asset: str) -> dict[str, Check]:
        """All checks of an asset, by name."""
        node = self.ask(queries.CHECKS, key={"path": asset.split("/")})["node"]
        return {check.name: check for check in map(_check, node["found"]["checks"])}

    def _entries(self, asset: str, what: str) -> list[Entry]:
        node = self.ask(queries.ENTRIES, key={"path": asset.split("/")})["node"]
        if what not in node:
            raise DagsterSaysNo(f"{asset}: {node['__typename']}")
        return sorted((_entry(each) for each in node[what]), key=lambda entry: entry.seconds)

    # Ticks.

    def ticks(self, name: str) -> list[dict[str, Any]]:
        """Of a schedule or a sensor, the newest first: status, skipReason, runIds, error."""
        selector = {"name": name, "repositoryName": _REPOSITORY, "repositoryLocationName": _LOCATION}
        state = self.ask(queries.TICKS, of=selector)["state"]
        if "ticks" not in state:
            raise DagsterSaysNo(f"{name}: {state['__typename']}")
        return list(state["ticks"])

    def page(self, path: str) -> str:
        """The address of a page."""
        return f"{self.url}/{path}"

    def location_page(self, path: str) -> str:
        """The address of a page about the code location: ``jobs/NAME/playground`` and the like."""
        return self.page(f"locations/{_LOCATION}/{path}")

    def _launch(self, what: Mapping[str, Any], config: Mapping[str, Any] | None, tags: Mapping[str, str]) -> str:
        selector = {"repositoryLocationName": _LOCATION, "repositoryName": _REPOSITORY, **what}
        given = [{"key": key, "value": value} for key, value in tags.items()]
        params = {"selector": selector, "runConfigData": config or {}, "executionMetadata": {"tags": given}}
        return _launched(self.ask(queries.LAUNCH, params=params)["made"])

    def _is_loaded(self) -> bool:
        entries = [each["locationOrLoadError"] for each in self.ask(queries.LOCATIONS)["work"]["locationEntries"]]
        for entry in entries:
            if entry and entry["__typename"] == "PythonError":
                raise DagsterSaysNo(entry["message"] + "".join(each["message"] for each in entry["causes"]))
        return bool(entries) and all(entries)


@contextmanager
def dagster_dev(folder: Path, code: str, environment: Mapping[str, str]) -> Iterator[DagsterDev]:
    """``dagster dev``, loaded; ended afterwards."""
    with DagsterDev(folder, code, environment) as server:
        yield server


_VALUES: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("intRepr", int),
    ("floatValue", float),
    ("text", str),
    ("path", str),
    ("boolValue", bool),
    ("mdStr", str),
    ("jsonString", json.loads),
    ("timestamp", float),
    ("table", lambda table: [json.loads(record) for record in table["records"]]),
)


def _run(found: dict[str, Any]) -> Run:
    tags = {tag["key"]: tag["value"] for tag in found["tags"]}
    return Run(found["runId"], found["status"], tags, found["creationTime"], found["startTime"], found["endTime"])


def _entry(found: dict[str, Any]) -> Entry:
    return Entry(found["runId"], float(found["timestamp"]) / 1000, _metadata(found["metadataEntries"]))


def _check(found: dict[str, Any]) -> Check:
    execution = found["executionForLatestMaterialization"]
    evaluation = execution and execution["evaluation"]
    if not evaluation:
        return Check(found["name"], None, "", {})
    metadata = _metadata(evaluation["metadataEntries"])
    return Check(found["name"], evaluation["success"], evaluation["description"] or "", metadata)


def _metadata(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        for name, read in _VALUES:
            if entry.get(name) is not None:
                found[entry["label"]] = read(entry[name])
    return found


def _line(event: Mapping[str, Any]) -> str:
    error = event.get("error") or {}
    causes = [cause["message"] for cause in error.get("causes") or ()]
    description = (event.get("failureMetadata") or {}).get("description")
    return " ".join(filter(None, [event.get("message"), error.get("message"), *causes, description]))


def _launched(answer: Mapping[str, Any]) -> str:
    if "run" not in answer:
        reasons = [answer.get("message"), *(each["message"] for each in answer.get("errors", ()))]
        raise DagsterSaysNo("; ".join(filter(None, reasons)) or str(answer["__typename"]))
    return str(answer["run"]["runId"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
