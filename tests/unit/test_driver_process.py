from __future__ import annotations

import sys

import pytest

from coord_control.driver_process import GRACE_VARIABLE, driver_environment, submit_arguments


@pytest.mark.parametrize(
    ("existing", "result"),
    [
        ("pyspark-shell", "--master local[3] pyspark-shell"),
        ("--conf spark.x=1 pyspark-shell", "--master local[3] --conf spark.x=1 pyspark-shell"),
        ("--master yarn --conf a=b pyspark-shell", "--master local[3] --conf a=b pyspark-shell"),
        ("--master=yarn pyspark-shell", "--master local[3] pyspark-shell"),
        ("--name 'two words' pyspark-shell", "--master local[3] --name 'two words' pyspark-shell"),
    ],
)
def test_the_option_is_the_only_master_and_all_else_is_kept(existing: str, result: str) -> None:
    assert submit_arguments(existing, "local[3]").replace("'local[3]'", "local[3]") == result


def test_without_a_master_the_arguments_of_spark_submit_are_left_alone() -> None:
    assert "PYSPARK_SUBMIT_ARGS" not in driver_environment({"A": "1"})
    assert driver_environment({"PYSPARK_SUBMIT_ARGS": "x"})["PYSPARK_SUBMIT_ARGS"] == "x"


@pytest.mark.parametrize(
    ("master", "given", "python"),
    [
        (None, {}, sys.executable),
        ("local[2]", {}, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "/usr/bin/python3"}, "/usr/bin/python3"),
        ("spark://host:7077", {}, None),
    ],
)
def test_python_workers_on_this_machine_use_the_driver_s_interpreter(
    master: str | None, given: dict[str, str], python: str | None
) -> None:
    assert driver_environment(given, master=master).get("PYSPARK_PYTHON") == python


def test_the_driver_is_told_the_grace_period() -> None:
    assert driver_environment({}, grace=2.5)[GRACE_VARIABLE] == "2.5"
