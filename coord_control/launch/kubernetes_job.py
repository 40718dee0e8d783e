"""The manifest of a launch on Kubernetes: a template, with what the launcher sets.

Threads: pure, except that :func:`read_template` reads a file.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.errors import LaunchFailed
from coord_control.exit_codes import NO_RESTART

__all__ = ["BEFORE", "NUMBER", "REQUEST", "SLOT", "TEMPLATE", "driver_of", "job_of", "read_template", "slot_label"]

TEMPLATE: Final = "COORD_KUBERNETES_TEMPLATE"  #: the variable that names the template

#: Annotations of a launch: its slot, its request, the generation before it, and its number among those of the slot.
SLOT: Final = "coord-control/slot"  #: also a label
REQUEST: Final = "coord-control/request"
BEFORE: Final = "coord-control/before"
NUMBER: Final = "coord-control/launch"

_GRACE: Final = "COORD_GRACE"
_NAME_CHARACTERS: Final = 57  # Kubernetes appends a dash and five characters for the pod; a name has 63 at most
_STOP_SECONDS: Final = 90  # the grace period of a pod whose template has none
_KILL_SECONDS: Final = 30  # what is left of it for the pod to end after the driver was killed


def slot_label(slot: str) -> str:
    """Return the value of the slot's label: its hash, because a label has at most 63 characters of a few kinds."""
    return hashlib.sha256(slot.encode()).hexdigest()[:32]


def driver_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the driver's container of a manifest: the one of this name, or else the first."""
    containers: list[dict[str, Any]] = job["spec"]["template"]["spec"]["containers"]
    return next((each for each in containers if each["name"] == "driver"), containers[0])


def read_template(path: str) -> dict[str, Any]:
    """Return the Job in a file; other manifests in the file are ignored.

    Raises:
        LaunchFailed: there is none that can be used.
    """
    import yaml  # of the extra

    if not path:
        raise LaunchFailed(f"{TEMPLATE} is not set. Set it to the manifest of a Job, here or in start.env of the job")
    try:
        with open(path, encoding="utf-8") as file:
            manifests = [each for each in yaml.safe_load_all(file) if each]
        [job] = [each for each in manifests if (each["apiVersion"], each["kind"]) == ("batch/v1", "Job")]
        driver, metadata = driver_of(job), job["metadata"]
        namespace, command = metadata.get("namespace"), " ".join(driver.get("command") or ())
    except OSError as error:
        raise LaunchFailed(f"{path} cannot be read ({error.strerror}). Correct {TEMPLATE}") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"{path} is not the manifest of one batch/v1 Job with metadata and a container ({error})"
        raise LaunchFailed(f"{problem}. Begin with deploy/kubernetes/launch/job.yaml") from error
    if not namespace:
        raise LaunchFailed(f"{path} has no metadata.namespace. Add it")
    if "args" in driver or "coordctl" in command:
        problem = f"{path} says what its container {driver['name']} runs, which the job's definition says (start)"
        raise LaunchFailed(f"{problem}. Remove args, and coordctl from command; its options have variables")
    metadata.pop("generateName", None)
    return dict(job)


def job_of(
    template: dict[str, Any],
    program: Program,
    environment: Mapping[str, str],
    *,
    slot: str,
    number: int,
    request: str,
    before: int,
) -> dict[str, Any]:
    """Return the manifest of a launch.

    The grace period of ``coordctl run`` is that of the pod, less half a minute, unless the template or the environment
    has ``COORD_GRACE``.

    Args:
        environment: variables of the driver; they replace those of the template.
        number: that of the launch in its slot. Launches of the same number have the same name.
    """
    job = copy.deepcopy(template)
    spec, pod, driver = job["spec"], job["spec"]["template"]["spec"], driver_of(job)
    job["metadata"]["name"] = _name(slot, number)
    marks = {SLOT: slot, REQUEST: request, BEFORE: str(before), NUMBER: str(number)}
    if spec["template"].get("metadata") is None:
        spec["template"]["metadata"] = {}
    for metadata in (job["metadata"], spec["template"]["metadata"]):
        metadata["labels"] = {**(metadata.get("labels") or {}), SLOT: slot_label(slot)}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **marks}
    spec.update(completions=1, parallelism=1)
    spec.setdefault("podReplacementPolicy", "Failed")  # the next pod comes when the last one has ended for sure
    spec.setdefault("podFailurePolicy", {"rules": _failure_rules(driver["name"])})
    pod.setdefault("restartPolicy", "Never")
    period = pod.setdefault("terminationGracePeriodSeconds", _STOP_SECONDS)
    command = ["coordctl", "run", *program.options, "--", program.script, *program.args]
    driver["args"] = [_literal(word) for word in command]
    if program.folder != os.getcwd():  # the default, which means nothing in a pod
        driver["workingDir"] = program.folder
    given = driver.get("env") or []
    values = dict(environment)
    if _GRACE not in {each["name"] for each in given} and "--grace" not in program.options:
        values.setdefault(_GRACE, f"{max(period - _KILL_SECONDS, period // 2)}s")
    ours = [{"name": name, "value": _literal(value)} for name, value in values.items()]
    driver["env"] = ours + [each for each in given if each["name"] not in values]  # those may refer to ours
    return job


def _failure_rules(container: str) -> list[dict[str, Any]]:
    # As in deploy/kubernetes/flights/driver.yaml, which has the reasons.
    codes = {"containerName": container, "values": sorted(map(int, NO_RESTART))}
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {**codes, "operator": "In"}},
        {"action": "Ignore", "onExitCodes": {**codes, "operator": "NotIn"}},
    ]


def _literal(text: str) -> str:
    return text.replace("$", "$$")  # Kubernetes would replace $(NAME)


def _name(slot: str, number: int) -> str:
    end = f"-{slot_label(slot)[:10]}-{number}"
    words = re.sub("[^a-z0-9]+", "-", slot.lower())[: _NAME_CHARACTERS - len(end)].strip("-")
    return (words or "job") + end
