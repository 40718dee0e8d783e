"""The units of systemd: by its own check, and against the code that they start."""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from coord_control.errors import EndpointNotBound
from coord_control.exit_codes import NO_RESTART, ExitCode, exit_code_of
from coord_control.metrics.address import DRIVER_PORT, EXPORTER_PORT
from examples.flights.service import PORT, options_of
from tests.deploy_kit import DEPLOY, check_coordctl, check_script, check_variables, documents, seconds

SYSTEMD: Final = DEPLOY / "systemd"
UNITS: Final = sorted(SYSTEMD.glob("*.service"))
PROGRAMS: Final = "/opt/coord-control/bin/"


def settings(unit: Path) -> dict[str, list[str]]:
    """Key -> the values of all its lines."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def environment(name: str) -> dict[str, str]:
    """The variables of an environment file."""
    lines = (SYSTEMD / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def command(unit: Path, variables: dict[str, str]) -> list[str]:
    """The words that systemd makes of ExecStart: ``${NAME}`` is one word, ``$NAME`` as many as it has."""
    (line,) = settings(unit)["ExecStart"]
    words: list[str] = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$[A-Z]+", word):
            words += shlex.split(variables[word[1:]])
        else:
            words.append(re.sub(r"\$\{([A-Z]+)\}", lambda found: variables[found[1]], word))
    return words


def test_systemd_accepts_them(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed here")
    # It looks whether the programs are there: these are the ones of the environment that runs the tests.
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace(PROGRAMS, f"{Path(sys.executable).parent}/")
        (tmp_path / unit.name.replace("@", "@flights")).write_text(text)
        (tmp_path / unit.name).write_text(text)
    names = [f"./{unit.name.replace('@', '@flights')}" for unit in UNITS]
    done = subprocess.run([analyze, "verify", *names], cwd=tmp_path, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "coord-control" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", [unit for unit in UNITS if "dagster" not in unit.name], ids=lambda unit: unit.name)
def test_coordctl_understands_what_it_is_asked(unit: Path) -> None:
    words = command(unit, environment("flights.env"))
    assert words[0] == f"{PROGRAMS}coordctl"
    assert check_coordctl(words)


def test_the_driver_understands_its_arguments() -> None:
    variables = environment("flights.env")
    unit = SYSTEMD / "coord-control@.service"
    options = options_of(check_script(command(unit, variables)))
    assert options.port == PORT
    (folder,) = settings(unit)["WorkingDirectory"]
    assert options.work.is_relative_to(folder), "systemd lets the driver write nowhere else"
    assert variables["COORD_METRICS"].endswith(f":{DRIVER_PORT}")


def test_variables_are_known() -> None:
    own = {name for unit in UNITS for name in re.findall(r"\$\{?([A-Z]+)\}?", " ".join(settings(unit)["ExecStart"]))}
    for name in ("control.env", "flights.env", "dagster.env"):
        check_variables(environment(name), own=own)
    for unit in UNITS:
        check_variables(value.partition("=")[0] for value in settings(unit).get("Environment", ()))


def test_every_file_that_a_unit_reads_has_an_example() -> None:
    examples = {path.name for path in SYSTEMD.iterdir()} | {"%i.env"}
    pattern = r"/etc/coord-control/([\w%.-]+\.(?:env|yaml))"
    found = {name for unit in UNITS for name in re.findall(pattern, unit.read_text(encoding="utf-8"))}
    assert {"control.env", "%i.env"} <= found <= examples


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_nobody_is_root_and_the_password_is_a_credential(unit: Path) -> None:
    found = settings(unit)
    assert found["User"] == ["coord-control"]
    (credential,) = found["LoadCredential"]
    assert f"COORD_CONTROL_PASSWORD_FILE=%d/{credential.partition(':')[0]}" in found["Environment"]


def test_exit_codes_mean_what_coordctl_means() -> None:
    found = settings(SYSTEMD / "coord-control@.service")
    assert {int(code) for code in found["RestartPreventExitStatus"][0].split()} == {int(code) for code in NO_RESTART}
    assert found["SuccessExitStatus"] == [str(int(ExitCode.STOPPED))]
    assert found["KillMode"] == ["mixed"]


@pytest.mark.parametrize("name", ["exporter", "ui"])
def test_what_another_start_can_help_is_started_again(name: str) -> None:
    found = settings(SYSTEMD / f"coord-control-{name}.service")
    assert found["Restart"] == ["on-failure"]
    never = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert never == {int(code) for code in NO_RESTART - {ExitCode.FENCED}}
    taken = EndpointNotBound("127.0.0.1", range(1, 2), OSError(errno.EADDRINUSE, "taken"))
    assert exit_code_of(taken) not in never
    # Longer apart than the five starts within ten seconds after which systemd gives up.
    assert float(found["RestartSec"][0]) * 5 > 10


def test_the_driver_has_time_to_stop() -> None:
    found = settings(SYSTEMD / "coord-control@.service")
    assert float(found["TimeoutStopSec"][0]) > seconds(environment("flights.env")["GRACE"])


def test_ports_agree() -> None:
    def words(name: str) -> list[str]:
        return command(SYSTEMD / f"coord-control-{name}.service", environment("dagster.env"))

    assert words("exporter")[-1] == f"127.0.0.1:{EXPORTER_PORT}"
    location = documents(SYSTEMD / "workspace.yaml")[0]["load_from"][0]["grpc_server"]
    code = words("dagster-code")
    assert code[code.index("--port") + 1] == str(location["port"])
    assert code[code.index("--host") + 1] == location["host"]
