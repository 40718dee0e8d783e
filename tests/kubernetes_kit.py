"""Kubernetes' API server for tests, as far as a launcher needs it, and what its controllers and nodes do with Jobs.

It answers over HTTP as the API reference says: 409 for a name that exists, a selection by labels, deletion in the
foreground with ``deletionTimestamp``, failures as objects of the kind Status. It refuses a Job that the schemas of
Kubernetes refuse. Nothing happens by itself: a test says when a pod starts to run and how it ends.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

__all__ = ["TEMPLATE", "VERSIONS", "ApiServer", "api_server", "variables_of"]

#: The oldest version of Kubernetes with all that is used, and the newest whose schema is at hand.
VERSIONS: Final = ("1.31", kubernetes_validate.latest_version())
NAMESPACE: Final = "streams"
TOKEN: Final = "of-the-test"

#: The least that a template needs.
TEMPLATE: Final = """
apiVersion: batch/v1
kind: Job
metadata:
  namespace: streams
spec:
  template:
    spec:
      containers:
        - name: driver
          image: registry.example.org/coord-control-spark:0.1.0
          env:
            - name: COORD_MASTER
              value: local[2]
            - name: COORD_CONTROL
              value: of the template
"""

_PATH: Final = re.compile(r"/(?:apis/batch/v1|api/v1)/namespaces/(\w+)/(jobs|pods)(?:/([\w.-]+)(/log)?)?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ANSWERS: Final = {"GET": 200, "POST": 201, "DELETE": 200}
_JOB_NAME: Final = "batch.kubernetes.io/job-name"

_Object = dict[str, Any]


class Refused(Exception):
    """The status and the reason of a refusal."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message
        super().__init__(message)


class ApiServer(ThreadingHTTPServer):
    """Jobs and pods of one namespace.

    Attributes:
        submitted: every Job that was created, as it came.
        created: is called with each pod that is created.
        answered: is called with method and path before each answer; what it returns is the refusal.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.RLock()
        self.jobs: dict[str, _Object] = {}
        self.pods: dict[str, _Object] = {}
        self.logs: dict[str, str] = {}
        self.submitted: list[_Object] = []
        self.created: Callable[[_Object], object] = lambda pod: None
        self.answered: Callable[[str, str], Refused | None] = lambda method, path: None
        self.requests: list[str] = []
        self._ids = itertools.count(1)

    def answer(self, method: str, path: str, query: Mapping[str, str], body: _Object) -> Any:
        refusal = self.answered(method, path)
        if refusal is not None:
            raise refusal
        match = _PATH.fullmatch(path)
        if match is None or match[1] != NAMESPACE:
            raise Refused(404, "NotFound", f"the server could not find {path}")
        kind, name = match[2], match[3]
        with self.lock:
            self.requests.append(f"{method} {kind}")
            if (method, kind, name) == ("POST", "jobs", None):
                return self._create(body)
            if (method, name) == ("GET", None):
                found = getattr(self, kind).values()
                return {"kind": "List", "items": [each for each in found if _selected(each, query["labelSelector"])]}
            if (method, kind, bool(match[4])) == ("GET", "pods", True):
                return "\n".join(self._found("pods", name, self.logs).splitlines()[-int(query["tailLines"]) :])
            if (method, kind) == ("DELETE", "jobs"):
                return self._delete(self._found("jobs", name, self.jobs), body)
        raise Refused(405, "MethodNotAllowed", f"{method} {path}")

    def runs(self, job: str | None = None) -> _Object:
        """The container of a Job's pod runs."""
        with self.lock:
            pod = self.living(job)
            self._is_in(pod, "Running", {"running": {}})
            return pod

    def ends(self, code: int, job: str | None = None) -> None:
        """The driver of a Job's pod has ended; the Job's rules say what follows."""
        with self.lock:
            pod = self.living(job)
            self._is_in(pod, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}})
            owner = self.jobs.get(pod["metadata"]["labels"][_JOB_NAME])
            if owner is None:
                return
            status = owner["status"]
            status["failed" if code else "succeeded"] = status.get("failed" if code else "succeeded", 0) + 1
            if "deletionTimestamp" in owner["metadata"]:
                del self.jobs[owner["metadata"]["name"]]
            elif code == 0:
                self._has("Complete", owner)
            elif _action(owner, code) == "FailJob":
                self._has("Failed", owner)
            else:
                self._make_pod(owner)

    def loses(self, job: str) -> None:
        """A Job is deleted in the background, as ``kubectl delete job`` does: its pod ends later."""
        with self.lock:
            del self.jobs[job]

    def living(self, job: str | None = None) -> _Object:
        """The pod that has not ended."""
        [found] = [
            pod
            for pod in self.pods.values()
            if pod["status"]["phase"] in ("Pending", "Running") and job in (None, pod["metadata"]["labels"][_JOB_NAME])
        ]
        return found

    def kubeconfig(self, folder: Path) -> Path:
        """Write the configuration of a client."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        return file

    def _create(self, job: _Object) -> _Object:
        name = job["metadata"]["name"]
        if name in self.jobs:
            raise Refused(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        for version in VERSIONS:
            kubernetes_validate.validate(job, version, strict=True)
        assert _NAME.fullmatch(name), name
        template = job["spec"]["template"]
        for metadata in (job["metadata"], template["metadata"]):
            assert all(_LABEL.fullmatch(value) for value in metadata.get("labels", {}).values())
        assert template["spec"]["restartPolicy"] == "Never", "podFailurePolicy needs it"
        self.submitted.append(job)
        made: _Object = json.loads(json.dumps(job))
        self.jobs[name] = made
        made["metadata"] |= {"uid": f"uid-{next(self._ids)}", "creationTimestamp": self._now()}
        made["status"] = {}
        self._make_pod(made)
        return made

    def _make_pod(self, job: _Object) -> None:
        name = f"{job['metadata']['name']}-{next(self._ids):05d}"
        template = job["spec"]["template"]
        labels = template["metadata"].get("labels", {}) | {_JOB_NAME: job["metadata"]["name"]}
        metadata = template["metadata"] | {"name": name, "labels": labels, "creationTimestamp": self._now()}
        pod = self.pods[name] = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        self.logs[name] = ""
        self.created(pod)

    def _delete(self, job: _Object, options: _Object) -> _Object:
        metadata = job["metadata"]
        assert options["propagationPolicy"] == "Foreground"
        if options["preconditions"]["uid"] != metadata["uid"]:
            raise Refused(409, "Conflict", "the UID in the precondition does not match the UID in record")
        metadata.setdefault("deletionTimestamp", self._now())
        metadata["finalizers"] = ["foregroundDeletion"]
        for pod in self.pods.values():
            if pod["metadata"]["labels"][_JOB_NAME] == metadata["name"]:
                pod["metadata"].setdefault("deletionTimestamp", self._now())
        return job

    def _is_in(self, pod: _Object, phase: str, state: _Object) -> None:
        driver = pod["spec"]["containers"][0]["name"]
        pod["status"] = {"phase": phase, "containerStatuses": [{"name": driver, "state": state}]}

    def _has(self, condition: str, job: _Object) -> None:
        job["status"]["conditions"] = [{"type": condition, "status": "True"}]

    def _found(self, kind: str, name: str, among: Mapping[str, Any]) -> Any:
        if name not in among:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return among[name]

    def _now(self) -> str:
        start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
        return (start + datetime.timedelta(seconds=next(self._ids))).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        try:
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            found, code = self.server.answer(self.command, url.path, query, body), _ANSWERS[self.command]
        except Refused as error:
            found, code = {"kind": "Status", "reason": error.reason, "message": error.message}, error.code
        except kubernetes_validate.ValidationError as error:
            found, code = {"kind": "Status", "reason": "Invalid", "message": error.message}, 422
        except AssertionError as error:
            found, code = {"kind": "Status", "reason": "Invalid", "message": f"of the test: {error!r}"}, 422
        is_text = isinstance(found, str)
        content = (found if is_text else json.dumps(found)).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if is_text else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """Serve until the end of the block."""
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def variables_of(job: _Object) -> dict[str, str]:
    """The variables of the driver in a Job, or a pod, that have a value, as the driver sees them."""
    spec = job["spec"].get("template", job)["spec"]
    return {each["name"]: each["value"].replace("$$", "$") for each in spec["containers"][0]["env"] if "value" in each}


def _selected(found: _Object, selector: str) -> bool:
    labels = found["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, _, value in (each.partition("=") for each in selector.split(",")))


def _action(job: _Object, code: int) -> str:
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            if (code in codes["values"]) is (codes["operator"] == "In"):
                return str(rule["action"])
    return "Count"
