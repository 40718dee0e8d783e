"""Tests of jobs without operators, on every PySpark that is supported: `make compat SPARK=3.5` (scripts/compat.py).

`make test` runs one of their stories on the PySpark of the checkout; here the marker `slow` leaves nothing out.
"""

from __future__ import annotations

import importlib.util
from typing import Final

import pytest

from tests.spark.conftest import _no_query_survives_its_test as _no_query_survives_its_test
from tests.spark.conftest import file_stream as file_stream
from tests.spark.conftest import make_job as make_job
from tests.spark.conftest import own_session as own_session
from tests.spark_session import session_jars, session_sets

#: What the tests of a file need: modules, which `make compat` installs, and jars that are made for this PySpark.
_MODULES: Final = {"test_connect.py": ("grpc_status", "google.rpc")}
_SETS: Final = {
    "test_delta.py": ("delta",),
    "test_iceberg.py": ("iceberg",),
    "test_kafka_delta.py": ("delta", "kafka"),
    "test_kafka_delta_tutorial.py": ("delta", "kafka"),
}


# First, because pytest's own -m must already see what is left.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this environment cannot run."""
    out = [item for item in items if not _can_run(item.path.name)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def _can_run(file: str) -> bool:
    if not all(map(_is_there, _MODULES.get(file, ()))):
        return False
    needed = _SETS.get(file, ())
    return not needed or (set(needed) <= {*session_sets()} and bool(session_jars()))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
