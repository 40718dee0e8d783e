"""A signal to `coordctl run` stops the driver: in order, within the grace period, and at once when it comes twice."""

from __future__ import annotations

import signal
import textwrap

import pytest

from tests.acceptance.conftest import STOPPABLE, STUBBORN, Run, Write, await_line, is_running

_TAKEN_BY_ANOTHER_THREAD = """
    import signal, threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [{signum}])
"""

# Before a script: SIGTERM comes while Python calls back because an object is gone.
_IGNORED = """
    import time, weakref
    class Gone: pass
    gone = Gone()
    def wait(_):
        print("ignoring", flush=True)
        time.sleep(3600)
    reference = weakref.ref(gone, wait)
    del gone
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_stop_reaches_the_job_which_ends_cleanly(
    script: Write, start: Run, signum: int, code: int
) -> None:
    process = start(script(STOPPABLE), options=["--grace", "1h"])
    await_line(process, "ready")
    process.send_signal(signum)
    out, err = process.communicate()

    assert process.returncode == code
    assert out.splitlines() == ["asked to stop within " + out.split()[4], "stopped cleanly None"]
    assert 2000.0 < float(out.split()[4]) <= 2880.0  # the jobs' share of the grace period
    assert "killing" not in err


def test_a_job_may_finish_stopping_after_the_script_s_last_line(script: Write, start: Run) -> None:
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
    await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "released\n")


def test_a_script_without_a_job_leaves_through_its_finally_blocks(script: Write, start: Run) -> None:
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
    await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "cleaned up\n")


def test_a_job_that_starts_after_the_request_was_ignored_is_stopped(script: Write, start: Run) -> None:
    """Bug: Python ignores what is raised in the callback of a weak reference, and the job ran until it was killed."""
    process = start(script(_IGNORED + STOPPABLE), options=["--grace", "1h"])
    await_line(process, "ignoring")
    process.terminate()
    out, err = process.communicate()

    assert "stopped cleanly" in out
    assert "Exception ignored in" in err
    assert process.returncode == 143


def test_a_driver_whose_main_thread_does_not_get_the_request_itself_stops(script: Write, start: Run) -> None:
    """Bug: a thread that was just starting could take the signal, and nothing woke the main thread to handle it."""
    taken = _TAKEN_BY_ANOTHER_THREAD.format(signum=int(signal.SIGTERM))
    process = start(script(taken + STOPPABLE), options=["--grace", "50s"])
    await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert process.returncode == 143
    assert out.endswith("stopped cleanly None\n")


def test_a_supervisor_whose_main_thread_does_not_get_the_request_itself_stops_the_driver(
    script: Write, start: Run
) -> None:
    taken = textwrap.dedent(_TAKEN_BY_ANOTHER_THREAD).format(signum=int(signal.SIGINT))
    process = start(script(STOPPABLE), before=taken)
    await_line(process, "ready")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 130
    assert out.endswith("stopped cleanly None\n")


def test_the_request_goes_to_the_driver_and_not_to_the_processes_beside_it(script: Write, start: Run) -> None:
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
    await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()

    assert (process.returncode, out) == (143, "end of input\nchild ended with 0\n")


def test_a_driver_that_does_not_stop_is_killed_with_all_it_started(script: Write, start: Run) -> None:
    process = start(script(STUBBORN), options=["--grace", "200ms"])
    pids = [int(word) for word in await_line(process, "ready").split()[1:]]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()

    assert process.returncode == 137
    assert "killing the driver: it has not stopped within 0.2 s" in err
    assert not any(is_running(pid) for pid in pids)


def test_a_second_request_kills_at_once(script: Write, start: Run) -> None:
    process = start(script(STUBBORN), options=["--grace", "1h"])
    await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    await_line(process, "asking the driver to stop", errors=True)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()

    assert process.returncode == 137
    assert "a second SIGTERM arrived" in err
