"""The manifests: against the schemas of Kubernetes, against each other, and against the code that they start."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.exit_codes import NO_RESTART, ExitCode
from coord_control.launch.kubernetes_job import SLOT, job_of, read_template, slot_label
from coord_control.metrics.address import DRIVER_PORT, EXPORTER_PORT
from examples.flights.service import PORT, options_of
from tests.deploy_kit import (
    APPLICATION,
    COORD_UID,
    DEPLOY,
    check_coordctl,
    check_script,
    check_variables,
    documents,
    is_pinned,
    spark_settings,
)

KUBERNETES: Final = DEPLOY / "kubernetes"
FOLDERS: Final = ("base", "migrate", "flights", "launch")
#: The oldest version of Kubernetes with all that is used, and the newest whose schema is at hand.
VERSIONS: Final = ("1.31", kubernetes_validate.latest_version())

MANIFESTS: Final = [
    pytest.param(document, id=f"{path.relative_to(KUBERNETES)}:{document['kind']}/{document['metadata']['name']}")
    for path in sorted(KUBERNETES.rglob("*.yaml"))
    for document in documents(path)
    if document["kind"] != "Kustomization" and "name" in document["metadata"]
]
DRIVER: Final[dict[str, Any]] = documents(KUBERNETES / "flights/driver.yaml")[0]
EXECUTOR: Final[dict[str, Any]] = documents(KUBERNETES / "flights/executor.yaml")[0]
SPARK: Final = spark_settings(KUBERNETES / "flights/spark-defaults.conf")


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of every pod."""
    for parameter in MANIFESTS:
        document: Any = parameter.values[0]
        if "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]
    yield "executor", EXECUTOR["spec"]


def kustomization(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = documents(KUBERNETES / folder / "kustomization.yaml")[0]
    return content


def one(kind: str, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [
        parameter.values[0]  # type: ignore[misc]
        for parameter in MANIFESTS
        if (parameter.values[0]["kind"], parameter.values[0]["metadata"]["name"]) == (kind, name)  # type: ignore[index]
    ]
    assert len(found) == 1
    return found[0]


PODS: Final = [pytest.param(spec, id=name) for name, spec in pods()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", [*MANIFESTS, pytest.param({**EXECUTOR}, id="flights/executor.yaml")])
def test_a_manifest_is_what_the_schema_says(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_see_what_is_wrong() -> None:
    wrong = {**DRIVER, "spec": {**DRIVER["spec"], "backofLimit": 3}}
    with pytest.raises(kubernetes_validate.ValidationError, match="backofLimit"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_makes_manifests_of_it(folder: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    assert rendered
    for document in rendered:
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)
        place = "dagster" if document["metadata"]["name"] == "flights-template" else "streams"
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == place
    images = set(re.findall(r"^\s*(?:- )?image: (\S+)", done.stdout, flags=re.MULTILINE))
    assert images
    assert all(is_pinned(image) for image in images)
    if folder == "flights":
        driver = next(document for document in rendered if document["kind"] == "Job")
        environment = {each["name"]: each for each in container(driver["spec"]["template"]["spec"])["env"]}
        assert images == {environment["EXECUTOR_IMAGE"]["value"]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_kustomization_has_every_file_of_its_folder_and_pins_its_images(folder: str) -> None:
    content = kustomization(folder)
    files = [file for each in content.get("configMapGenerator", ()) for file in each.get("files", ())]
    named = {*content["resources"], *files, "kustomization.yaml"}
    assert named == {path.name for path in (KUBERNETES / folder).iterdir()}
    assert all(is_pinned(f"{image['newName']}:{image['newTag']}") for image in content.get("images", ()))


def container(spec: dict[str, Any]) -> dict[str, Any]:
    (only,) = spec["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("spec", PODS)
def test_a_pod_has_no_rights_that_it_does_not_need(spec: dict[str, Any]) -> None:
    security = spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, COORD_UID)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(spec)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # Only the driver talks with Kubernetes.
    assert spec["automountServiceAccountToken"] is (spec["serviceAccountName"] == "spark-driver")


@pytest.mark.parametrize("spec", PODS)
def test_a_pod_mounts_what_it_has(spec: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container(spec)["volumeMounts"]}
    maps = {each["name"] for folder in FOLDERS for each in kustomization(folder).get("configMapGenerator", ())}
    for volume in volumes.values():
        if "configMap" in volume:
            assert volume["configMap"]["name"] in maps
        if "persistentVolumeClaim" in volume:
            assert one("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    sources = {each["configMapRef"]["name"] for each in container(spec).get("envFrom", ())}
    assert sources <= maps
    assert one("ServiceAccount", spec["serviceAccountName"])


@pytest.mark.parametrize("spec", [each for each in PODS if each.id != "executor"])
def test_coordctl_understands_what_it_is_asked(spec: dict[str, Any]) -> None:
    assert check_coordctl(container(spec)["command"])


def test_an_executor_runs_the_script_of_the_image() -> None:
    assert container(EXECUTOR["spec"])["command"] == ["spark-executor"]
    dockerfile = (DEPLOY / "images/Dockerfile").read_text(encoding="utf-8")
    assert "/opt/coord-control/bin/spark-executor\n" in dockerfile
    assert SPARK["spark.kubernetes.executor.podTemplateContainerName"] == container(EXECUTOR["spec"])["name"]


def test_variables_are_known() -> None:
    for _, spec in pods():
        given = {each["name"]: str(each.get("value", "")) for each in container(spec).get("env", ())}
        used = re.findall(r"\$\((\w+)\)", " ".join(given.values()))
        assert set(used) <= given.keys()
        # Kubernetes puts in only what stands before.
        names = list(given)
        assert all(names.index(name) < names.index("PYSPARK_SUBMIT_ARGS") for name in used)
        check_variables(given, own=used)
    literals = kustomization("base")["configMapGenerator"][0]["literals"]
    check_variables(literal.partition("=")[0] for literal in literals)


def test_the_password_is_where_it_is_looked_for() -> None:
    literals = dict(each.split("=", 1) for each in kustomization("base")["configMapGenerator"][0]["literals"])
    folder, _, name = literals["COORD_CONTROL_PASSWORD_FILE"].rpartition("/")
    for pod, spec in pods():
        if pod != "executor":
            mounts = {mount["name"]: mount["mountPath"] for mount in container(spec)["volumeMounts"]}
            assert mounts["control-database"] == folder
    readme = (KUBERNETES / "README.md").read_text(encoding="utf-8")
    assert f"create secret generic control-database --from-file={name}=" in readme


def test_the_driver_understands_its_arguments() -> None:
    options = options_of(check_script(container(DRIVER["spec"]["template"]["spec"])["command"]))
    assert options.port == PORT
    for spec in (DRIVER["spec"]["template"]["spec"], EXECUTOR["spec"]):
        paths = {mount["name"]: mount["mountPath"] for mount in container(spec)["volumeMounts"]}
        assert options.work.is_relative_to(paths["jobs"])


def test_the_driver_has_time_to_stop() -> None:
    spec = DRIVER["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > check_coordctl(container(spec)["command"])["grace"]


def test_exit_codes_mean_what_coordctl_means() -> None:
    rules = DRIVER["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "FailJob", "Ignore"]
    for rule in rules[1:]:
        assert set(rule["onExitCodes"]["values"]) == {int(code) for code in NO_RESTART}
        assert rule["onExitCodes"]["containerName"] == container(DRIVER["spec"]["template"]["spec"])["name"]
    migration = one("Job", "control-migration")["spec"]["podFailurePolicy"]["rules"]
    assert int(ExitCode.TEMPORARY) not in migration[0]["onExitCodes"]["values"]


def test_executors_find_their_driver() -> None:
    spec = DRIVER["spec"]["template"]["spec"]
    service = one("Service", SPARK["spark.driver.host"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    labels = DRIVER["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(spec)["ports"]}
    assert ports == {
        "endpoint": PORT,
        "spark-driver": int(SPARK["spark.driver.port"]),
        "spark-blocks": int(SPARK["spark.blockManager.port"]),
        "metrics": DRIVER_PORT,
    }
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert "spark.kubernetes.executor.podNamePrefix" not in SPARK, "the next driver would meet the pods of the last one"


def test_the_network_lets_through_what_has_to_come_through() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in documents(KUBERNETES / "base/network.yaml")}
    allowed = {
        name: {port["port"] for rule in policy.get("ingress", ()) for port in rule["ports"]}
        for name, policy in policies.items()
    }
    blocks = int(SPARK["spark.blockManager.port"])
    assert allowed == {
        "nothing-comes-in": set(),
        "driver": {PORT, int(SPARK["spark.driver.port"]), blocks},
        "executors": {blocks},
        "metrics": {DRIVER_PORT, EXPORTER_PORT},
    }
    selected = policies["driver"]["podSelector"]["matchLabels"]
    assert selected.items() <= DRIVER["spec"]["template"]["metadata"]["labels"].items()


def test_the_driver_may_do_what_spark_does_and_no_more() -> None:
    (rule,) = one("Role", "spark-driver")["rules"]
    assert set(rule["resources"]) == {"pods", "configmaps"}
    assert "*" not in rule["verbs"]
    # Spark would ask for more when it stops.
    assert SPARK["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert SPARK["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"


def test_dagster_starts_the_same_driver_as_the_manifest() -> None:
    path = KUBERNETES / "launch/job.yaml"
    spec = container(DRIVER["spec"]["template"]["spec"])
    options = check_coordctl(spec["command"])
    start = spec["command"].index(f"{APPLICATION}examples/flights/service.py")
    program = Program(script=spec["command"][start], args=tuple(spec["command"][start + 1 :]), folder=os.getcwd())
    job = job_of(read_template(str(path)), program, {}, slot="flights", number=1, request="r", before=0)
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)

    made = job["spec"]["template"]["spec"]
    given = {each["name"]: each.get("value") for each in container(made)["env"]}
    assert (given.pop("COORD_MASTER"), given.pop("COORD_GRACE")) == (options["master"], f"{options['grace']:.0f}s")
    assert check_script(container(made)["args"]) == list(program.args)
    assert is_pinned(container(made)["image"])
    assert given["EXECUTOR_IMAGE"] == container(made)["image"]
    assert given.keys() == {each["name"] for each in spec["env"]}

    expected = copy.deepcopy(DRIVER["spec"])
    driver = container(expected["template"]["spec"])
    driver.pop("command")
    driver |= {name: container(made)[name] for name in ("args", "env", "image")}
    marks = job["metadata"]["annotations"]
    expected["template"]["metadata"]["annotations"] |= marks
    expected["template"]["metadata"]["labels"] = {**DRIVER["metadata"]["labels"], SLOT: slot_label("flights")}
    assert job["spec"] == {**expected, "ttlSecondsAfterFinished": 604800}


def test_the_selectors_of_the_pages_select_what_they_should() -> None:
    readme = (KUBERNETES / "README.md").read_text(encoding="utf-8")
    [(key, value)] = re.findall(r"apply -k flights --selector (\S+)!=(\S+)", readme)
    labels = {each["kind"]: each["metadata"]["labels"] for each in (DRIVER, one("Service", "flights-driver"))}
    assert [kind for kind, each in labels.items() if each.get(key) != value] == ["Service"]

    page = (DEPLOY.parent / "docs/operations/launchers.md").read_text(encoding="utf-8")
    [template] = documents(KUBERNETES / "launch/job.yaml")
    selectors = re.findall(r"kubectl --namespace (\S+) \w+.* --selector (\S+)=(\S+)", page)
    assert len(selectors) == 2
    for namespace, key, value in selectors:
        assert namespace == template["metadata"]["namespace"]
        for metadata in (template["metadata"], template["spec"]["template"]["metadata"]):
            assert metadata["labels"][key] == value


def test_dagster_may_do_what_its_launcher_does_and_no_more() -> None:
    allowed = {
        (each, verb)
        for rule in one("Role", "job-launcher")["rules"]
        for each in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {("jobs", "create"), ("jobs", "list"), ("jobs", "delete"), ("pods", "list"), ("pods/log", "get")}


def test_the_launcher_sets_the_rules_of_the_manifest_where_a_template_has_none() -> None:
    program = Program(script="flights.py", folder=os.getcwd())
    bare = {
        "metadata": {"namespace": "streams"},
        "spec": {"template": {"spec": {"containers": [{"name": "driver", "image": "x:1.0"}]}}},
    }
    spec = job_of(bare, program, {}, slot="flights", number=1, request="r", before=0)["spec"]
    for name in ("podFailurePolicy", "podReplacementPolicy", "completions", "parallelism"):
        assert spec[name] == DRIVER["spec"][name]
    for name in ("restartPolicy", "terminationGracePeriodSeconds"):
        assert spec["template"]["spec"][name] == DRIVER["spec"]["template"]["spec"][name]


@pytest.mark.parametrize("spec", PODS)
def test_probes_ask_for_what_is_served(spec: dict[str, Any]) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(spec).get("ports", ())}
    served = {DRIVER_PORT: "/healthz", EXPORTER_PORT: "/healthz", 8765: "/healthz"}
    probes = [value["httpGet"] for key, value in container(spec).items() if key.endswith("Probe")]
    assert all(probe["path"] == served[ports[probe["port"]]] for probe in probes)
    assert len(probes) == (3 if ports else 0)
    for port in set(ports.values()) & served.keys():
        text = " ".join(map(str, container(spec)["command"] + container(spec).get("env", [])))
        assert f"0.0.0.0:{port}" in text
