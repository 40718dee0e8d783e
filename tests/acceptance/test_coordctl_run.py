"""`coordctl run` as a user runs it: real processes and signals, scripts without Spark.

The scripts are in the place of a job: they register a stop function as `Job` does. Nothing here waits by the clock: a
test waits for a line that a process prints, or for its end. `ready` on standard output comes from the script, the
other lines are on standard error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)

_CHECKOUT = Path(__file__).resolve().parents[2]
_FAST = ["--backoff-initial", "10ms", "--backoff-max", "20ms"]

# A script that has a job: stops when it is asked to, then ends by itself.
_STOPPABLE = """
    import sys, threading
    from coord_control.spark.process import shutdown
    stopped = threading.Event()
    def stop(seconds):
        print("asked to stop within", seconds, flush=True)
        stopped.set()
    shutdown.register(stop)
    print("ready", flush=True)
    stopped.wait()
    shutdown.unregister(stop)
    print("stopped cleanly", shutdown.lost_supervisor(), flush=True)
"""

# The same, and it takes until its supervisor has been killed.
_SLOW_TO_STOP = """
    import os, sys, threading, time
    from coord_control.spark.process import shutdown
    supervisor, stopped = os.getppid(), threading.Event()
    def stop(seconds):
        print("stopping", flush=True)
        while os.getppid() == supervisor:
            time.sleep(0.01)
        time.sleep(0.5)  # for the end of the lifeline
        stopped.set()
    shutdown.register(stop)
    print("ready", flush=True)
    stopped.wait()
    shutdown.unregister(stop)
    print("stopped cleanly", shutdown.lost_supervisor(), flush=True)
"""

# A script that does not stop, with a child beside it as a JVM is: it ends when its standard input does.
_STUBBORN = """
    import os, signal, subprocess, sys, threading
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("ready", os.getpid(), child.pid, flush=True)
    threading.Event().wait()
"""

# Before a script: its standard error takes nothing more, as at a terminal that was paused.
_FULL = """
    import contextlib, os
    os.set_blocking(2, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, b"x")
    os.set_blocking(2, True)
"""

Run = Callable[..., subprocess.Popen[str]]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_CHECKOUT)}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start coordctl, in a process that has run ``before``; what a failed test leaves behind is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(script: Path, *args: str, options: Sequence[str] = (), before: str = "") -> subprocess.Popen[str]:
        program = f"{before}\nfrom coord_control.cli.main import app\napp(prog_name='coordctl')"
        command = [sys.executable, "-c", program, "run", *options, str(script), *args]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=_environment())
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str], containing: str, *, errors: bool = False) -> str:
    stream = process.stderr if errors else process.stdout
    assert stream is not None
    seen = []
    for line in stream:
        seen.append(line)
        if containing in line:
            return line
    raise AssertionError(f"no line with {containing!r} in {seen}")


def _kill(driver: psutil.Process) -> None:
    """Kill what a failed test would leave behind."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (*driver.children(recursive=True), driver):
            each.kill()


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_script_that_ends_has_finished_the_job(script: Callable[[str], Path], start: Run) -> None:
    path = script("""
        import sys
        print(__name__, sys.argv[1:], sys.path[0], __file__)
    """)

    out, err = start(path, "--days", "30", "--master", "mine").communicate()

    assert out == f"__main__ ['--days', '30', '--master', 'mine'] {path.parent} {path}\n"
    assert "the job is finished (exit code 0)" in err
    assert err.startswith("--master: passed to the script, because they follow it; put options of coordctl run first")


def test_what_the_script_alone_knows_or_is_marked_as_its_own_is_no_mistake(
    script: Callable[[str], Path], start: Run
) -> None:
    _, err = start(script(""), "--days", "30", "-n", "--", "--master", "mine").communicate()

    assert "passed to the script" not in err


@pytest.mark.parametrize(("home", "found"), [("", "no JAVA_HOME, no java on PATH"), ("/no/java", "cannot be run")])
def test_without_java_nothing_is_started(
    script: Callable[[str], Path], start: Run, monkeypatch: pytest.MonkeyPatch, home: str, found: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", "/no/programs")
    process = start(script(""))
    _, err = process.communicate()

    assert process.returncode == 78
    assert found in err
    assert "coordctl doctor" in err
    assert "driver started" not in err


def test_spark_connect_needs_no_java_here(
    script: Callable[[str], Path], start: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    process = start(script(""))
    process.communicate()

    assert process.returncode == 0


def test_a_job_says_that_it_runs_and_how_to_look_at_it(script: Callable[[str], Path], start: Run) -> None:
    path = script("""
        from coord_control.spark.process import start_notice
        start_notice.announce("flights", 3, is_visible=True)
        start_notice.announce("hidden", 1, is_visible=False)
        import no_such_module
    """)
    process = start(path, options=["--max-restarts", "0"])
    _, err = process.communicate()

    assert (
        "job flights is running, generation 3; show it: coordctl show flights; stop it: coordctl stop flights\n" in err
    )
    assert "job hidden is running, generation 1, without a control plane\n" in err
    assert process.returncode == 1  # a job had begun: that an import fails now need not be for ever


def test_every_driver_is_told_what_to_restore(script: Callable[[str], Path], start: Run, tmp_path: Path) -> None:
    path = script("""
        import os, pathlib
        names = ("RESTORE_FROM", "ALLOW_NON_RESTORED_STATE", "ALLOW_MISSING_INPUT")
        print(*(os.environ[f"COORD_{name}"] for name in names), flush=True)
        mark = pathlib.Path("mark")
        if not mark.exists():
            mark.touch()
            raise ValueError("boom")
    """)

    out, _ = start(path, options=[*_FAST, "--restore-from", "savepoints/./one", "--allow-missing-input"]).communicate()

    # A path is made absolute: the driver may change its directory. The job applies it once.
    assert out.splitlines() == [f"{tmp_path}/savepoints/one 0 1"] * 2


def test_a_script_that_fails_is_restarted_with_the_reason_in_the_log(
    script: Callable[[str], Path], start: Run, tmp_path: Path
) -> None:
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
        options=_FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert (tmp_path / "marks").read_text() == "xxxx"
    assert "the driver ended with exit code 1: ValueError: boom; restart 1 in 0.01 s" in err
    assert "the driver ended with SIGKILL; restart 2 in 0.02 s" in err
    assert "the driver ended with exit code 1: no flights today; restart 3 in 0.02 s" in err


def test_the_traceback_is_that_of_the_script(script: Callable[[str], Path], start: Run) -> None:
    path = script("""
        def fail():
            raise ValueError("boom")
        fail()
    """)

    _, err = start(path, options=["--max-restarts", "0"]).communicate()

    trace = err[err.index("Traceback") :]
    assert trace.startswith(f'Traceback (most recent call last):\n  File "{path}", line 4, in <module>\n')
    assert "coord_control/spark/process/bootstrap.py" not in err


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
    script: Callable[[str], Path], start: Run, statement: str, code: int, reason: str
) -> None:
    process = start(script(statement))
    _, err = process.communicate()

    assert process.returncode == code
    assert reason in err
    assert "a restart would not help" in err
    assert err.count("driver started") == 1


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_stop_reaches_the_job_which_ends_cleanly(
    script: Callable[[str], Path], start: Run, signum: int, code: int
) -> None:
    process = start(script(_STOPPABLE), options=["--grace", "50s"])
    _line(process, "ready")
    process.send_signal(signum)
    out, err = process.communicate()

    assert process.returncode == code
    assert out.splitlines() == ["asked to stop within " + out.split()[4], "stopped cleanly None"]
    assert 30.0 < float(out.split()[4]) <= 40.0  # the jobs' share of the grace period
    assert "killing" not in err


def test_a_job_may_finish_stopping_after_the_script_s_last_line(script: Callable[[str], Path], start: Run) -> None:
    process = start(
        script("""
            import threading, time
            from coord_control.spark.process import shutdown
            stopped, over = threading.Event(), threading.Event()
            def stop(seconds):
                stopped.set()
                over.wait()
                time.sleep(0.3)  # an interpreter that does not wait is gone by then
                print("released", flush=True)
            shutdown.register(stop)
            print("ready", flush=True)
            stopped.wait()
            over.set()
        """)
    )
    _line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "released\n")


def test_a_script_without_a_job_leaves_through_its_finally_blocks(script: Callable[[str], Path], start: Run) -> None:
    process = start(
        script("""
            import threading
            try:
                print("ready", flush=True)
                threading.Event().wait()
            finally:
                print("cleaned up", flush=True)
        """)
    )
    _line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "cleaned up\n")


_TAKEN_BY_ANOTHER_THREAD = """
    import signal, threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [{signum}])
"""


def test_a_driver_whose_main_thread_does_not_get_the_request_itself_stops(
    script: Callable[[str], Path], start: Run
) -> None:
    """Bug: a thread that was just starting could take the signal, and nothing woke the main thread to handle it."""
    taken = _TAKEN_BY_ANOTHER_THREAD.format(signum=int(signal.SIGTERM))
    process = start(script(taken + _STOPPABLE), options=["--grace", "50s"])
    _line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert process.returncode == 143
    assert out.endswith("stopped cleanly None\n")


def test_a_supervisor_whose_main_thread_does_not_get_the_request_itself_stops_the_driver(
    script: Callable[[str], Path], start: Run
) -> None:
    taken = textwrap.dedent(_TAKEN_BY_ANOTHER_THREAD).format(signum=int(signal.SIGINT))
    process = start(script(_STOPPABLE), before=taken)
    _line(process, "ready")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 130
    assert out.endswith("stopped cleanly None\n")


def test_the_request_goes_to_the_driver_and_not_to_the_processes_beside_it(
    script: Callable[[str], Path], start: Run
) -> None:
    process = start(
        script("""
            import subprocess, sys, threading
            from coord_control.spark.process import shutdown
            code = "import sys; print('ready', flush=True); sys.stdin.read(); print('end of input', flush=True)"
            stopped = threading.Event()
            shutdown.register(lambda seconds: stopped.set())  # before the child says that it is ready
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
            stopped.wait()
            child.stdin.close()
            print("child ended with", child.wait(), flush=True)
        """)
    )
    _line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "end of input\nchild ended with 0\n")


def test_a_driver_that_does_not_stop_is_killed_with_all_it_started(script: Callable[[str], Path], start: Run) -> None:
    process = start(script(_STUBBORN), options=["--grace", "200ms"])
    pids = [int(word) for word in _line(process, "ready").split()[1:]]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()

    assert process.returncode == 137
    assert "killing the driver: it has not stopped within 0.2 s" in err
    assert not any(_is_running(pid) for pid in pids)


def test_a_second_request_kills_at_once(script: Callable[[str], Path], start: Run) -> None:
    process = start(script(_STUBBORN), options=["--grace", "1h"])
    _line(process, "ready")
    process.send_signal(signal.SIGTERM)
    _line(process, "asking the driver to stop", errors=True)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()

    assert process.returncode == 137
    assert "a second SIGTERM arrived" in err


def test_a_driver_that_somebody_else_stops_is_restarted(script: Callable[[str], Path], start: Run) -> None:
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
        options=_FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert "the driver ended with exit code 143; restart 1" in err


@pytest.mark.parametrize(
    ("on_command", "line"),
    [(True, "the driver requested a restart"), (False, "the driver ended with exit code 143; restart 1")],
)
def test_a_driver_whose_job_a_command_has_ended_ends_as_the_command_says_whatever_signal_comes(
    script: Callable[[str], Path], start: Run, line: str, *, on_command: bool
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
        options=_FAST,
    )
    _, err = process.communicate()

    assert process.returncode == 0
    assert line in err


def test_what_a_crashed_driver_leaves_behind_is_gone_before_the_next_one_starts(
    script: Callable[[str], Path], start: Run
) -> None:
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
        options=_FAST,
    )
    out, _ = process.communicate()

    assert (process.returncode, out) == (0, "alive False\n")


def test_the_driver_stops_cleanly_when_its_supervisor_is_killed(script: Callable[[str], Path], start: Run) -> None:
    process = start(script(_STOPPABLE), options=["--grace", "1h"])
    _line(process, "ready")
    process.kill()
    out, err = process.communicate()  # returns when the driver, too, has closed its output: when it is gone

    assert "stopped cleanly the supervisor (coordctl run) was killed or crashed" in out
    assert "the supervisor is gone: stopping" in err


def test_a_stop_that_was_requested_stays_one_when_the_supervisor_is_killed_meanwhile(
    script: Callable[[str], Path], start: Run
) -> None:
    process = start(script(_SLOW_TO_STOP), options=["--grace", "1h"])
    _line(process, "ready")
    process.terminate()
    _line(process, "stopping")
    process.kill()
    out, _ = process.communicate()

    assert out.splitlines()[-1] == "stopped cleanly None"


def test_a_driver_that_does_not_stop_ends_itself_when_its_supervisor_is_killed(
    script: Callable[[str], Path], start: Run
) -> None:
    process = start(script(_STUBBORN), options=["--grace", "200ms"])
    _line(process, "ready")
    process.kill()
    out, _ = process.communicate()

    assert out == ""


def test_a_driver_stops_when_its_supervisor_and_its_terminal_are_gone(
    script: Callable[[str], Path], start: Run
) -> None:
    """Bug: to say so failed, and the driver ran on without a supervisor."""
    process = start(script(_STOPPABLE), options=["--grace", "1h"])
    _line(process, "ready")
    [driver] = psutil.Process(process.pid).children()
    assert process.stderr is not None
    process.stderr.close()
    process.kill()
    try:
        driver.wait(30.0)
    finally:
        _kill(driver)
    assert process.stdout is not None
    assert "stopped cleanly the supervisor (coordctl run) was killed or crashed" in process.stdout.read()


def test_a_driver_is_killed_after_its_supervisor_although_its_output_is_not_read(
    script: Callable[[str], Path], start: Run
) -> None:
    """Bug: to say that the supervisor is gone waited for the reader, and the driver ran on."""
    process = start(script(_FULL + _STUBBORN), options=["--grace", "200ms"])
    _line(process, "ready")
    [driver] = psutil.Process(process.pid).children()
    process.kill()
    try:
        driver.wait(30.0)
    finally:
        _kill(driver)


def test_the_master_arrives_where_pyspark_looks_for_it(script: Callable[[str], Path], start: Run) -> None:
    path = script("import os; print(os.environ['PYSPARK_SUBMIT_ARGS'])")

    out, _ = start(path, options=["--master", "spark://host:7077"]).communicate()

    assert out == "--master spark://host:7077 pyspark-shell\n"


def test_a_script_that_does_not_exist_is_a_usage_error(start: Run, tmp_path: Path) -> None:
    process = start(tmp_path / "nowhere.py")
    _, err = process.communicate()

    assert process.returncode == 2
    assert "does not exist" in err
