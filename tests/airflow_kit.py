"""A real Airflow on SQLite: its API server, scheduler, triggerer and dag processor as processes that tests can kill.

Airflow runs in an environment of its own (``scripts/airflow_env.py``) and imports the product from this checkout. Its
tasks talk to jobs through the control database, like those of any other machine.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from scripts.airflow_env import python
from tests.patience import SECONDS, eventually
from tests.places import CHECKOUT

__all__ = ["DEAD_AFTER_SECONDS", "Airflow", "TaskInstance", "environment", "put_distribution"]

#: After so long without a heartbeat, Airflow takes a worker or a triggerer for dead.
DEAD_AFTER_SECONDS: Final = 6

_OVER: Final = ("success", "failed")

TaskInstance = Mapping[str, Any]


def put_distribution(folder: Path) -> None:
    """Put what an installer would leave of the product: its name, its version and its entry points."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = folder / f"coord_control-{project['version']}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (place / "entry_points.txt").write_text("\n".join(lines))


def environment(home: Path, control: str) -> dict[str, str]:
    """The variables of every process of Airflow.

    Args:
        home: the folder for all that Airflow writes; made with its DAGs folder.
        control: the address of the control database.
    """
    packages = home / "packages"
    if not packages.exists():
        put_distribution(packages)
    (home / "dags").mkdir(exist_ok=True)
    port = _free_port()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(packages)]),
        "COORD_CONTROL": control,
        "AIRFLOW_CONN_NAMED": control.replace("sqlite:", "coord-control:"),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "1",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(DEAD_AFTER_SECONDS),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "1",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(DEAD_AFTER_SECONDS),
        "AIRFLOW__TRIGGERER__CAPACITY": "20",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(_free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(_free_port()),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


class Airflow:
    """All processes of one deployment.

    Args:
        home: the folder for all that it writes; DAG files are in ``dags`` below it.
        control: the address of the control database.
    """

    def __init__(self, home: Path, control: str) -> None:
        self.home = home
        self.variables = environment(home, control)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client = httpx.Client(base_url=self.variables["AIRFLOW__API__BASE_URL"], timeout=60)

    def __enter__(self) -> Airflow:
        self.command("db", "migrate")
        for name in ("api-server", "dag-processor", "scheduler", "triggerer"):
            self.start(name)
        eventually(self._answers, self.logs, 0.2)
        token = self._client.get("/auth/token").raise_for_status().json()["access_token"]
        self._client.headers["Authorization"] = f"Bearer {token}"
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        for name in list(self._processes):
            self.kill(name)

    def command(self, *arguments: str) -> str:
        """What ``airflow`` prints."""
        done = subprocess.run(self._line(*arguments), env=self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        """Start one of the processes."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._line(name), env=self.variables, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """Kill one of the processes with all that it has started."""
        process = self._processes.pop(name)
        _kill([*_below(process.pid), process.pid])
        process.wait()

    def stop(self, name: str) -> None:
        """Let one of the processes end by itself."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)

    def kill_worker(self) -> None:
        """Kill the executor's worker that executes a task, and the task's process."""
        tasks = [
            pid for pid in _below(self._processes["scheduler"].pid) if _below(pid) and "LocalExecutor" in _title(pid)
        ]
        assert tasks, f"no task is being executed\n{self.logs()}"
        _kill([*tasks, *(each for pid in tasks for each in _below(pid))])

    def unpause(self, dag: str) -> None:
        """Wait until a DAG is known, and let its runs start."""
        eventually(lambda: self._client.get(f"/api/v2/dags/{dag}").status_code == 200, self.logs, 0.2)
        self._send("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def pause(self, dag: str) -> None:
        """Let no more runs of a DAG start."""
        self._send("PATCH", f"/api/v2/dags/{dag}", {"is_paused": True})

    def run(self, dag: str, run: str, **conf: Any) -> None:
        """Start a run of a DAG."""
        self.unpause(dag)
        self._send("POST", f"/api/v2/dags/{dag}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf})

    def task(self, dag: str, run: str, task: str) -> TaskInstance:
        """A task instance as the API shows it."""
        found: TaskInstance = self._send("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}")
        return found

    def state(self, dag: str, run: str, task: str) -> str | None:
        """The state of a task instance."""
        found: str | None = self.task(dag, run, task)["state"]
        return found

    def until(self, dag: str, run: str, task: str, *states: str) -> TaskInstance:
        """Wait until a task instance is in one of these states, by default until it is over."""
        wanted = states or _OVER
        eventually(
            lambda: self.state(dag, run, task) in wanted,
            lambda: f"{self.task(dag, run, task)}\n{self.log(dag, run, task)}\n{self.logs()}",
            0.2,
        )
        return self.task(dag, run, task)

    def until_over(self, dag: str, run: str) -> None:
        """Wait until a run of a DAG is over.

        What is cleared before that can be overlooked by Airflow's scheduler, which writes the end of the run some time
        after it has looked at its tasks.
        """
        where = f"/api/v2/dags/{dag}/dagRuns/{run}"
        eventually(lambda: self._send("GET", where)["state"] in _OVER, self.logs, 0.2)

    def result(self, dag: str, run: str, task: str) -> Any:
        """What a task instance has returned."""
        where = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
        return self._send("GET", where, params={"stringify": "false"})["value"]

    def events(self, uri: str) -> Sequence[Mapping[str, Any]]:
        """The events of an asset, oldest first."""
        found = self._send("GET", "/api/v2/assets/events", params={"order_by": "timestamp", "name_pattern": uri})
        return [each for each in found["asset_events"] if each["uri"] == uri]

    def import_errors(self) -> Sequence[str]:
        """What is wrong with DAG files."""
        return [each["stack_trace"] for each in self._send("GET", "/api/v2/importErrors")["import_errors"]]

    def clear(self, dag: str, run: str, task: str) -> None:
        """Clear a task instance as a person does."""
        body = {"dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": False}
        self._send("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)

    def mark(self, dag: str, run: str, task: str, state: str) -> None:
        """Mark a task instance as a person does."""
        self._send("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": state})

    def log(self, dag: str, run: str, task: str) -> str:
        """All lines that the tries of a task instance have logged."""
        folder = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id={task}"
        return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*.log*")))

    def logs(self) -> str:
        """The ends of the logs of all processes."""
        tails = [
            f"{path.name}:\n{path.read_text(errors='replace')[-4000:]}" for path in sorted(self.home.glob("*.log"))
        ]
        return "\n\n".join(tails)

    def _line(self, *arguments: str) -> list[str]:
        return [str(python()), "-m", "airflow", *arguments]

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._client.get("/api/v2/monitor/health").status_code == 200
        return False

    def _send(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        answer = self._client.request(method, path, json=body, params=params)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _below(pid: int) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    return []


def _title(pid: int) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
