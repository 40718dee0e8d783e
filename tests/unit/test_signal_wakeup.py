"""A signal that another thread takes wakes the main thread, which waits without a timeout: in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from coord_control.signal_wakeup import signals_wake_main_thread
from tests.patience import SECONDS

_WAITS = {
    "an event": "threading.Event().wait()",
    "a queue": "queue.SimpleQueue().get()",
    "a thread": "other.join()",
    "a socket": "pair[0].recv(1)",
}

_PROGRAM = """
    import queue, signal, socket, threading
    from coord_control.signal_wakeup import signals_wake_main_thread

    def handle(number, frame):
        handled.append(number)
        print("handled", flush=True)
        if len(handled) == 2:
            raise SystemExit(5)

    handled, pair = [], socket.socketpair()
    other = threading.Thread(target=threading.Event().wait, daemon=True)
    other.start()
    signal.signal(signal.SIGTERM, handle)
    with signals_wake_main_thread():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so another thread takes it
        print("ready", flush=True)
        {wait}
"""


@pytest.mark.parametrize("wait", _WAITS.values(), ids=_WAITS)
def test_each_signal_is_handled_once_wherever_the_main_thread_waits(wait: str) -> None:
    program = textwrap.dedent(_PROGRAM).format(wait=wait)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        patience = threading.Timer(SECONDS, process.kill)
        patience.start()
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                assert process.stdout.readline() == "handled\n"
            assert process.wait() == 5
            assert process.stdout.read() == ""
        finally:
            patience.cancel()
            process.kill()


def test_a_signal_that_another_thread_takes_ends_a_wait() -> None:
    waited = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: waited.set())

    def take() -> None:
        time.sleep(0.5)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    try:
        with signals_wake_main_thread():
            threading.Thread(target=take).start()
            assert waited.wait(SECONDS), "the handler has run only after the wait"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nothing_of_it_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGURG)
    with signals_wake_main_thread():
        assert signal.getsignal(signal.SIGURG) is not before
    assert signal.getsignal(signal.SIGURG) is before
    assert signal.set_wakeup_fd(-1) == -1
