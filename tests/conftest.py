"""What all tiers of tests share: their order, how long one test may hang, and the options of the whole run.

The tiers climb from cheap to dear, and so does a run: what a unit test can find is not left for a Spark test to find
minutes later. The time limit only ends a test that hangs; no test measures anything with it, so it is generous enough
for a machine that is many times slower. A test with a `timeout` marker of its own keeps it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from scripts import airflow_env
from scripts.connectors import ConnectorsMissing, jars, sets
from tests import jvm

TESTS: Final = Path(__file__).resolve().parent

# Fixtures of more than one tier.
pytest_plugins = ["tests.spark_session"]

# No test finds, or fills, the control database of whoever runs it; those that want one name their own.
os.environ["COORD_CONTROL"] = "none"
# Most processes of the tests live for seconds. Without this, in an environment that sets it, each of them would compile
# the whole product again: a fifth of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for _name, _value in jvm.environment().items():
    os.environ.setdefault(_name, _value)

#: Folders below `tests`, cheap tiers first. A folder that is not here comes last.
TIERS: Final = (
    "unit",
    "machines",
    "transcripts",
    "simulation",
    "deploy",
    "storage",
    "ui",
    "dagster",
    "airflow",
    "spark",
    "compat",
    "connectors",
)

#: Files whose tests take longest together, longest first. They come before all other tests of the dear tiers, because
#: at the end one process would run them alone.
LONGEST: Final = (
    "acceptance/test_live_pages.py",
    "acceptance/test_flights_demo.py",
    "acceptance/test_flights_dagster.py",
    "acceptance/test_dagster_browser.py",
    "acceptance/test_dagster_runs.py",
    "acceptance/test_coordctl_upgrade.py",
    "airflow/test_airflow.py",
    "kill/test_agent_kill.py",
    "spark/test_savepoint_matrix.py",
    "kill/test_supervised.py",
    "spark/test_checkpoint_layouts.py",
    "connectors/test_remote_jobs.py",
    "connectors/test_kafka_kill.py",
    "kill/test_kill_saving.py",
    "connectors/test_remote_kill.py",
    "spark/test_driver_end.py",
    "acceptance/test_ui_browser.py",
    "connectors/test_hdfs.py",
    "spark/test_stops.py",
)

#: The seconds after which a test counts as hanging.
LIMIT: Final = 3600

# Deadlines measure the machine, not the code: two processes share two cores here. In CI (the variable CI is set)
# Hypothesis itself chooses derandomized examples, so that a submission is not failed by an unlucky draw.
settings.register_profile("house", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("house")


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def _place(item: pytest.Item) -> tuple[int, int]:
    """Where an item stands in the order of a run."""
    file = item.path.relative_to(TESTS).as_posix()
    if file in LONGEST:
        return TIERS.index("spark"), LONGEST.index(file)
    return TIERS.index(_tier(item)) if _tier(item) in TIERS else len(TIERS), len(LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the stories in tests/transcripts print now into them; read the difference afterwards",
    )


def _no_connectors() -> str:
    """Return why the connectors cannot be tested; empty if they can."""
    try:
        for name in sets():
            jars(name)
    except ConnectorsMissing as error:
        return str(error)
    return ""


def _no_airflow() -> str:
    """Return why Airflow cannot be tested; empty if it can."""
    try:
        airflow_env.python()
    except airflow_env.AirflowMissing as error:
        return str(error)
    return ""


def pytest_configure(config: pytest.Config) -> None:
    if (reason := _no_airflow()) and os.environ.get("COORD_AIRFLOW") == "required":
        raise pytest.UsageError(f"COORD_AIRFLOW demands the tests of Airflow: {reason}")
    if (reason := _no_connectors()) and os.environ.get("COORD_CONNECTORS") == "required":
        raise pytest.UsageError(f"COORD_CONNECTORS demands the tests of connectors: {reason}")


def pytest_report_header() -> list[str]:
    reason = _no_connectors()
    lines = [f"The connectors are not tested: {reason}"] if reason else []
    if reason := _no_airflow():
        lines.append(f"Airflow is not tested: {reason}")
    if not jvm.ARCHIVE.exists():
        lines.append("JVMs start slowly: their archive of classes is made by python -m tests.jvm")
    return lines


# First, because pytest's own -m must already see the markers that are added here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items, "connectors", _no_connectors())
    _leave_out(config, items, "airflow", _no_airflow())
    items.sort(key=_place)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))


def _leave_out(config: pytest.Config, items: list[pytest.Item], tier: str, reason: str) -> None:
    wanted = [item for item in items if _tier(item) == tier] if reason else []
    if wanted:
        config.hook.pytest_deselected(items=wanted)
        items[:] = [item for item in items if item not in wanted]
