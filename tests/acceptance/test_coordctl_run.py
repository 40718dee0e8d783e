"""How `coordctl run` starts a script, with which arguments and environment, and what it reports of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, Write


def test_a_script_that_ends_has_finished_the_job(script: Write, start: Run) -> None:
    path = script("""
        import sys
        print(__name__, sys.argv[1:], sys.path[0], __file__)
    """)

    out, err = start(path, "--days", "30", "--master", "mine").communicate()

    assert out == f"__main__ ['--days', '30', '--master', 'mine'] {path.parent} {path}\n"
    assert "the job is finished (exit code 0)" in err
    assert err.startswith("--master: passed to the script, because they follow it; put options of coordctl run first")


def test_what_the_script_alone_knows_or_is_marked_as_its_own_is_no_mistake(script: Write, start: Run) -> None:
    _, err = start(script(""), "--days", "30", "-n", "--", "--master", "mine").communicate()

    assert "passed to the script" not in err


@pytest.mark.parametrize(("home", "found"), [("", "no JAVA_HOME, no java on PATH"), ("/no/java", "cannot be run")])
def test_without_java_nothing_is_started(
    script: Write, start: Run, monkeypatch: pytest.MonkeyPatch, home: str, found: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", "/no/programs")
    process = start(script(""))
    _, err = process.communicate()

    assert process.returncode == 78
    assert found in err
    assert "coordctl doctor" in err
    assert "driver started" not in err


def test_spark_connect_needs_no_java_here(script: Write, start: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    process = start(script(""))
    process.communicate()

    assert process.returncode == 0


def test_a_job_says_that_it_runs_and_how_to_look_at_it(script: Write, start: Run) -> None:
    path = script("""
        from coord_control.spark.process import start_notice
        start_notice.announce("flights", 3, control="sqlite:///")
        start_notice.announce("hidden", 1, control=None)
        import no_such_module
    """)
    process = start(path, options=["--max-restarts", "0"])
    _, err = process.communicate()

    assert (
        "job flights is running, generation 3; show it: coordctl show flights; stop it: coordctl stop flights\n" in err
    )
    assert "job hidden is running, generation 1, without a control plane\n" in err
    assert process.returncode == 1  # a job had begun: that an import fails now need not be for ever


def test_the_traceback_is_that_of_the_script(script: Write, start: Run) -> None:
    path = script("""
        def fail():
            raise ValueError("boom")
        fail()
    """)

    _, err = start(path, options=["--max-restarts", "0"]).communicate()

    trace = err[err.index("Traceback") :]
    assert trace.startswith(f'Traceback (most recent call last):\n  File "{path}", line 4, in <module>\n')
    assert "coord_control/spark/process/bootstrap.py" not in err


def test_the_master_arrives_where_pyspark_looks_for_it(script: Write, start: Run) -> None:
    path = script("import os; print(os.environ['PYSPARK_SUBMIT_ARGS'])")

    out, _ = start(path, options=["--master", "spark://host:7077"]).communicate()

    assert out == "--master spark://host:7077 pyspark-shell\n"


def test_a_script_that_does_not_exist_is_a_usage_error(start: Run, tmp_path: Path) -> None:
    process = start(tmp_path / "nowhere.py")
    _, err = process.communicate()

    assert process.returncode == 2
    assert "does not exist" in err
