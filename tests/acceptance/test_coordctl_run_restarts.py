"""Which ends of a driver `coordctl run` answers with another one, and what the next one starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import JobState
from tests.acceptance.conftest import FAST, Run, Write


def test_every_driver_is_told_what_to_restore(script: Write, start: Run, tmp_path: Path) -> None:
    path = script("""
        import os, pathlib
        names = ("RESTORE_FROM", "ALLOW_NON_RESTORED_STATE", "ALLOW_MISSING_INPUT")
        names += ("ROLL_BACK_SINKS", "ACCEPT_SKIPPED_EPOCHS")
        print(*(os.environ[f"COORD_{name}"] for name in names), flush=True)
        mark = pathlib.Path("mark")
        if not mark.exists():
            mark.touch()
            raise ValueError("boom")
    """)

    options = [*FAST, "--restore-from", "savepoints/./one", "--allow-missing-input", "--roll-back-sinks"]
    out, _ = start(path, options=options).communicate()

    # A path is made absolute: the driver may change its directory. The job applies it once.
    assert out.splitlines() == [f"{tmp_path}/savepoints/one 0 1 1 0"] * 2


def test_a_script_that_fails_is_restarted_with_the_reason_in_the_log(script: Write, start: Run, tmp_path: Path) -> None:
    process = start(
        script("""
            import os, pathlib, signal
            marks = pathlib.Path("marks")
            count = len(marks.read_text()) if marks.exists() else 0
            marks.write_text("x" * (count + 1))
            if count == 0:
                raise ValueError("boom")
            if count == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if count == 2:
                raise SystemExit("no flights today")
        """),
        options=FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert (tmp_path / "marks").read_text() == "xxxx"
    assert "the driver ended with exit code 1: ValueError: boom; restart 1 in 0.01 s" in err
    assert "the driver ended with SIGKILL; restart 2 in 0.02 s" in err
    assert "the driver ended with exit code 1: no flights today; restart 3 in 0.02 s" in err


@pytest.mark.parametrize(
    ("statement", "code", "reason"),
    [
        ("from coord_control.errors import InvalidName as E; raise E('job', '/')", 78, "InvalidName: job name '/'"),
        ("from coord_control.errors import Fenced as E; raise E('flights', 1, 2)", 77, "Fenced: job 'flights'"),
        ("from coord_control.errors import DamagedRecord as E; raise E('/a', 'short')", 65, "DamagedRecord: /a is"),
        ("this is no Python", 78, "invalid syntax"),
        ("import no_such_module", 78, "No module named 'no_such_module'"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--what'])", 2, "exit code 2"),
    ],
)
def test_an_error_that_no_restart_can_help_ends_the_supervisor(
    script: Write, start: Run, statement: str, code: int, reason: str
) -> None:
    process = start(script(statement))
    _, err = process.communicate()

    assert process.returncode == code
    assert reason in err
    assert "a restart would not help" in err
    assert err.count("driver started") == 1


def test_a_driver_that_somebody_else_stops_is_restarted(script: Write, start: Run) -> None:
    process = start(
        script("""
            import os, pathlib, signal, threading
            from coord_control.spark.process import shutdown
            first = not pathlib.Path("mark").exists()
            pathlib.Path("mark").touch()
            stopped = threading.Event()
            shutdown.register(lambda seconds: stopped.set())
            if first:
                os.kill(os.getpid(), signal.SIGTERM)
                stopped.wait()
        """),
        options=FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert "the driver ended with exit code 143; restart 1" in err


@pytest.mark.parametrize(
    ("on_command", "line"),
    [(True, "the driver requested a restart"), (False, "the driver ended with exit code 143; restart 1")],
)
def test_a_driver_whose_job_a_command_has_ended_ends_as_the_command_says_whatever_signal_comes(
    script: Write, start: Run, line: str, *, on_command: bool
) -> None:
    process = start(
        script("""
            import os, pathlib, signal, sys, threading
            from coord_control.spark.process import shutdown
            first = not pathlib.Path("mark").exists()
            pathlib.Path("mark").touch()
            if first:
                asked, stop = threading.Event(), lambda seconds: asked.set()
                shutdown.register(stop)
                os.kill(os.getpid(), signal.SIGTERM)
                asked.wait()
                if sys.argv[1] == "True":
                    shutdown.request_restart()
                shutdown.unregister(stop, on_command=sys.argv[1] == "True")
        """),
        str(on_command),
        options=FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert line in err


def test_what_a_crashed_driver_leaves_behind_is_gone_before_the_next_one_starts(script: Write, start: Run) -> None:
    process = start(
        script("""
            import os, pathlib, signal, subprocess, sys
            mark = pathlib.Path("mark")
            if mark.exists():
                alive = os.path.exists(f"/proc/{mark.read_text()}/cmdline")
                print("alive", alive and bool(pathlib.Path(f"/proc/{mark.read_text()}/cmdline").read_bytes()))
                raise SystemExit(0)
            code = "import sys; print('up', flush=True); sys.stdin.read()"
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            child.stdout.readline()
            mark.write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        """),
        options=FAST,
    )
    out, _ = process.communicate()

    assert (process.returncode, out) == (0, "alive False\n")


# The first driver ends for a restart, as its job does; the second one is the program that was changed meanwhile.
_CHANGED = """
    import pathlib, sys
    from coord_control.control.settings import ControlSettings
    from coord_control.spark.process import start_notice
    from coord_control.storage.records import ENDED_TO_RESTART, JobRegistration
    from coord_control.storage.store import ControlStore
    url = "sqlite:///" + str(pathlib.Path("own.db").resolve())
    store = ControlStore(ControlSettings.load(url).open_database("test"))
    store.jobs.register(
        JobRegistration(name="flights", root="/r", folder="/r/flights", generation=1, host="h", pid=1,
                        is_supervised=True)
    )
    start_notice.announce("flights", 1, control=url)
    store.jobs.ended("flights", 1, reason=ENDED_TO_RESTART)
    store.close()
    pathlib.Path(__file__).write_text("this is no Python")
    sys.exit(76)
"""


def test_a_job_whose_changed_program_does_not_start_says_so_in_its_own_database(
    script: Write, start: Run, tmp_path: Path
) -> None:
    process = start(script(_CHANGED))
    process.communicate()
    with ControlClient(f"sqlite:///{tmp_path}/own.db") as client:
        job = client.job("flights")

    assert process.returncode == 78
    assert (job.state, job.is_restarting) == (JobState.FAILED, False)
    assert job.end_reason.startswith("coordctl run has ended: the driver ended with exit code 78: ")
    assert "SyntaxError: invalid syntax" in job.end_reason
