"""Which masters are local."""

from __future__ import annotations

import pytest

from coord_control.spark.session import is_local


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]"])
def test_a_local_master_has_its_tasks_in_the_driver(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize(
    "master", ["local-cluster[2,1,700]", "spark://127.0.0.1:7077", "yarn", "k8s://https://host", "locale"]
)
def test_any_other_has_not(master: str) -> None:
    assert not is_local(master)
