"""Which masters are local, and what a session and its Spark must be able to do."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.errors import DeclarationError, SparkConnectUnsupported, SparkTooOld
from coord_control.spark.session import (
    can_place_rows,
    is_local,
    require_classic,
    require_operators,
    require_state_reader,
)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]"])
def test_a_local_master_has_its_tasks_in_the_driver(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,700]", "spark://127.0.0.1:7077", "yarn", "k8s://https://host", "locale"]
)
def test_any_other_has_not(master: str) -> None:
    assert not is_local(master)


@pytest.mark.parametrize("version", ["4.1.0", "4.1.0.dev1", "4.1-SNAPSHOT", "4.3.0", "4.10.2", "5.0.0-amzn-1"])
def test_operators_run_from_spark_4_1_on(version: str) -> None:
    assert can_place_rows(version)
    require_operators("op", version)


@pytest.mark.parametrize("version", ["3.5.9", "3.5.1-amzn-0", "4.0.5", "unknown"])
def test_an_operator_on_an_older_spark_is_refused_with_the_version_that_it_needs(version: str) -> None:
    assert not can_place_rows(version)
    with pytest.raises(SparkTooOld) as refused:
        require_operators("op", version)
    assert isinstance(refused.value, DeclarationError)
    assert str(refused.value).startswith(
        f"operator 'op' needs Spark 4.1 or newer, and this is Spark {version}: install"
    )
    assert "start the query without it" in str(refused.value)


def test_states_are_read_from_spark_4_0_on() -> None:
    require_state_reader("4.0.0")
    with pytest.raises(SparkTooOld, match=r"loading states needs Spark 4\.0 or newer"):
        require_state_reader("3.5.9")


def test_a_session_without_a_jvm_is_refused() -> None:
    without: Any = object()
    with pytest.raises(SparkConnectUnsupported, match="Run the job as a classic driver"):
        require_classic(without)
