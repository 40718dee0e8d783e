"""Starts ``coordctl run SCRIPT`` in a pod of Kubernetes: one Job for each launch, made from a template.

The template is the manifest of a Job, in the file that ``COORD_KUBERNETES_TEMPLATE`` names. The launcher sets its name,
labels, the driver's arguments and variables; everything else (image, volumes, rights, limits) is the template's.

The launches of a slot are numbered, and the number is in the Job's name. Two callers that start a job at the same
moment see the same launches, so they choose the same name, and the API server creates only one of both Jobs.

A slot is alive while one of its Jobs has not finished, or one of its pods has not ended, also after its Job was
deleted. If the API server cannot answer, every method but ``tail`` raises: silence does not mean that nothing is alive.

Threads: see :mod:`coord_control.launch.launcher`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.errors import LaunchFailed, PackageMissing
from coord_control.launch.kubernetes_job import (
    BEFORE,
    NUMBER,
    REQUEST,
    SLOT,
    TEMPLATE,
    driver_of,
    job_of,
    read_template,
    slot_label,
)
from coord_control.launch.launcher import Launch

__all__ = ["Kubernetes"]

_LOOK_SECONDS: Final = 0.5
_TIMEOUT_SECONDS: Final = (10, 60)  # to connect, to answer
_JOBS: Final = {"group": "batch", "version": "v1", "plural": "jobs"}


class Kubernetes:
    """See :class:`~coord_control.launch.launcher.Launcher`.

    The cluster is that of ``KUBECONFIG`` or, without it, the one in which this process runs, or else the one of
    kubectl. A launch that was stopped is deleted, and not found by ``newest`` afterwards.

    Args:
        environment: variables of the driver, added to those of the template.

    Raises:
        LaunchFailed: there is no usable template, or no configuration of a cluster.
        PackageMissing: the extra ``kubernetes`` is not installed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            import kubernetes
            import urllib3
            import yaml
        except ModuleNotFoundError as error:
            raise PackageMissing("the launcher for Kubernetes", error.name or "kubernetes", "kubernetes") from error
        self._environment = {name: value for name, value in environment.items() if name != TEMPLATE}
        self._path = environment.get(TEMPLATE) or os.environ.get(TEMPLATE, "")
        self._template = read_template(self._path)
        self._namespace: str = self._template["metadata"]["namespace"]
        self._client: Any = kubernetes.client
        config: Any = kubernetes.config
        self._no_answer = (urllib3.exceptions.HTTPError, OSError)
        configuration: Any = self._client.Configuration()
        # The methods that this repeats after an answer do not include POST.
        configuration.retries = urllib3.Retry(3, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504))
        file = os.environ.get("KUBECONFIG")  # the package would take what this was when it was imported
        try:
            if file is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(config_file=file, client_configuration=configuration)
        except (config.ConfigException, OSError, yaml.YAMLError) as error:
            problem = f"no cluster of Kubernetes is configured ({error})"
            raise LaunchFailed(f"{problem}. Set KUBECONFIG to a file with which kubectl works") from error
        api: Any = self._client.ApiClient(configuration)
        # As plain data: models of the package would drop what they do not know of the template.
        self._objects: Any = self._client.CustomObjectsApi(api)
        self._core: Any = self._client.CoreV1Api(api)

    def launch(
        self, slot: str, program: Program, *, request: str, before: int = 0, log_file: str | None = None
    ) -> Launch | None:
        if log_file is not None:
            raise LaunchFailed("the output of a pod goes to Kubernetes. Leave out start.log_file")
        jobs = self._jobs(slot)
        if self._lives(slot, jobs):
            return None
        # From the same answer as "nothing is alive": what was launched since then has this number, and this name.
        number = 1 + max(map(_number, jobs), default=0)
        marks: dict[str, Any] = {"slot": slot, "number": number, "request": request, "before": before}
        job = job_of(self._template, program, self._environment, **marks)
        made = self._ask("create a Job", self._objects.create_namespaced_custom_object, 409, **_JOBS, body=job)
        return None if made is None else self._launch_of(made)

    def newest(self, slot: str) -> Launch | None:
        jobs = self._jobs(slot)
        return self._launch_of(jobs[-1]) if jobs else None

    def has_begun(self, slot: str) -> bool:
        jobs = self._jobs(slot)
        if not jobs:
            return False
        status = jobs[-1].get("status", {})
        if status.get("succeeded") or status.get("failed"):  # its pods may have been removed
            return True
        name = driver_of(self._template)["name"]
        statuses = [each for pod in self._pods_of(jobs[-1]) for each in _container_statuses(pod)]
        states = [each.get("state", {}) for each in statuses if each["name"] == name]
        return any("running" in state or "terminated" in state for state in states)

    def is_alive(self, slot: str) -> bool:
        return self._lives(slot, self._jobs(slot))

    def stop(self, slot: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._lives(slot, jobs := self._jobs(slot)):
            for job in jobs:
                if not _has_finished(job) and "deletionTimestamp" not in job["metadata"]:
                    self._delete(job)
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def tail(self, slot: str, lines: int) -> str:
        try:
            jobs = self._jobs(slot)
            pods = sorted(self._pods_of(jobs[-1]) if jobs else [], key=lambda pod: pod["metadata"]["creationTimestamp"])
            if not pods:
                return ""
            where = {"name": pods[-1]["metadata"]["name"], "container": driver_of(self._template)["name"]}
            read = self._core.read_namespaced_pod_log
            content = self._ask("read a log", _content_of(read), 404, **where, tail_lines=lines)
        except LaunchFailed:
            return ""
        return "" if content is None else str(content.decode(errors="replace"))

    def _launch_of(self, job: dict[str, Any]) -> Launch:
        name, marks = job["metadata"]["name"], job["metadata"]["annotations"]
        log = f"kubectl --namespace {self._namespace} logs job/{name}"
        return Launch(marks[REQUEST], int(marks[BEFORE]), log, name)

    def _lives(self, slot: str, jobs: list[dict[str, Any]]) -> bool:
        # The pods after the Jobs: a finished Job makes no more of them.
        if not all(map(_has_finished, jobs)):
            return True
        phases = [pod.get("status", {}).get("phase") for pod in self._pods(f"{SLOT}={slot_label(slot)}")]
        return any(phase not in ("Succeeded", "Failed") for phase in phases)

    def _jobs(self, slot: str) -> list[dict[str, Any]]:
        """Return the Jobs of a slot, the newest last."""
        selector = f"{SLOT}={slot_label(slot)}"
        found = self._ask("list Jobs", self._objects.list_namespaced_custom_object, **_JOBS, label_selector=selector)
        return sorted(found["items"], key=_number)

    def _pods_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        return self._pods(f"batch.kubernetes.io/job-name={job['metadata']['name']}")

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        read = self._core.list_namespaced_pod
        content = self._ask("list pods", _content_of(read), label_selector=selector)
        pods: list[dict[str, Any]] = json.loads(content)["items"]
        return pods

    def _delete(self, job: dict[str, Any]) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        # Foreground: the Job is there until its pods have ended. The uid: never a later Job of the same name.
        precondition = self._client.V1Preconditions(uid=uid)
        options = self._client.V1DeleteOptions(propagation_policy="Foreground", preconditions=precondition)
        delete = self._objects.delete_namespaced_custom_object
        self._ask("delete a Job", delete, 404, 409, **_JOBS, name=name, body=options)

    def _ask(self, what: str, method: Callable[..., Any], *accepted: int, **arguments: Any) -> Any:
        """Call the API, and return its answer, or None for a status that the caller accepts."""
        try:
            return method(namespace=self._namespace, _request_timeout=_TIMEOUT_SECONDS, **arguments)
        except self._client.exceptions.ApiException as error:
            if error.status in accepted:
                return None
            problem = f"Kubernetes refuses to {what} in namespace {self._namespace} ({_message(error)})"
            raise LaunchFailed(f"{problem}. {self._next_step(error.status)}") from error
        except self._no_answer as error:
            problem = f"Kubernetes does not answer, and it is unknown what is alive there ({error})"
            raise LaunchFailed(f"{problem}. Try kubectl --namespace {self._namespace} get jobs, then repeat") from error

    def _next_step(self, status: int) -> str:
        if status in (401, 403):
            return "Give this account the role of deploy/kubernetes/launch/rbac.yaml"
        if status == 404:
            return f"Create the namespace, or correct it in {self._path}"
        return f"Correct {self._path}" if status in (400, 422) else "Repeat this later"


def _content_of(method: Callable[..., Any]) -> Callable[..., bytes]:
    """Return a method that reads the whole answer: also the connection may break meanwhile."""

    def read(**arguments: Any) -> bytes:
        content: bytes = method(**arguments, _preload_content=False).data
        return content

    return read


def _number(job: dict[str, Any]) -> int:
    return int(job["metadata"]["annotations"][NUMBER])


def _has_finished(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _container_statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod.get("status", {}).get("containerStatuses") or []


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, LookupError):
        return f"{error.status} {error.reason}"
