"""What the tests of deploy/ share: its files as data, and who knows a command line, a variable or a path in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from coord_control.control.settings import ControlSettings
from coord_control.metrics.address import METRICS_VARIABLE
from examples.flights.server import REPORTS_VARIABLE
from tests.command_kit import COMMAND, parsed
from tests.places import CHECKOUT

__all__ = [
    "APPLICATION",
    "COORD_UID",
    "DEPLOY",
    "check_coordctl",
    "check_script",
    "check_variables",
    "documents",
    "is_pinned",
    "seconds",
    "spark_settings",
]

DEPLOY: Final = CHECKOUT / "deploy"
APPLICATION: Final = "/opt/coord-control/app/"  #: where the images have the files of this repository
COORD_UID: Final = 10001  #: the user of the images

#: Variables of others, and whose they are.
_OF_OTHERS: Final = {
    "DAGSTER_HOME": "Dagster",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "Grafana",
    "GF_ANALYTICS_REPORTING_ENABLED": "Grafana",
    "GF_SECURITY_ADMIN_PASSWORD__FILE": "Grafana",
    "PATH": "the system",
    "POSTGRES_PASSWORD_FILE": "the image of PostgreSQL",
    "PYSPARK_PYTHON": "PySpark",
    "PYSPARK_SUBMIT_ARGS": "PySpark",
    "PYTHONDONTWRITEBYTECODE": "Python",
    "PYTHONPATH": "Python",
    "PYTHONUNBUFFERED": "Python",
    "SPARK_CONF_DIR": "Spark",
    "SPARK_HOME": "Spark",
    "SPARK_LOCAL_IP": "Spark",
    REPORTS_VARIABLE: "the flights",
}
_TAG: Final = re.compile(r"v?\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?")


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document is not None]


def check_coordctl(words: Sequence[str]) -> dict[str, Any]:
    """Parse a command line of coordctl as coordctl would, and return the values of the command's parameters.

    Raises:
        click's errors: it would not be understood.
    """
    assert words[0].rpartition("/")[2] == "coordctl"
    return parsed(_local(words[1:]))


def check_script(words: Iterable[str]) -> list[str]:
    """Return the arguments of the flights' service in a command line, whose path has to exist."""
    local = _local(words)
    script = str(CHECKOUT / "examples/flights/service.py")
    assert script in local
    assert Path(script).is_file()
    return local[local.index(script) + 1 :]


def check_variables(names: Iterable[str], own: Iterable[str] = ()) -> None:
    """Every variable is one that somebody reads.

    Args:
        own: that the file itself uses again.
    """
    known = {*_of_coordctl(), *_OF_OTHERS, *own}
    unknown = sorted(set(names) - known)
    assert not unknown, "nobody reads these"


def is_pinned(image: str) -> bool:
    """Whether the reference of an image names one version."""
    name, _, tag = image.rpartition(":")
    return bool(name) and _TAG.fullmatch(tag) is not None


def spark_settings(path: Path) -> dict[str, str]:
    """The settings of a spark-defaults.conf."""
    lines = [line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {key: value.strip() for key, value in (line for line in lines if not line[0].startswith("#"))}


def seconds(text: str) -> float:
    """``45s`` in seconds."""
    assert text.endswith("s")
    return float(text[:-1])


def _local(words: Iterable[str]) -> list[str]:
    return [word.replace(APPLICATION, f"{CHECKOUT}/") if word.startswith(APPLICATION) else word for word in words]


def _of_coordctl() -> Iterator[str]:
    yield from (METRICS_VARIABLE, "COORD_CONTROL")
    yield from (f"COORD_CONTROL_{field.upper()}" for field in ControlSettings.model_fields if field != "url")
    waiting: list[Any] = [COMMAND]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            given = parameter.envvar or ()
            yield from [given] if isinstance(given, str) else given
