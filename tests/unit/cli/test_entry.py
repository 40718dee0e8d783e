"""Ctrl-C while ``coordctl`` is being started: it ends, and prints no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest

from tests.places import CHECKOUT

#: Presses Ctrl-C when the command's modules are about to be loaded.
_LOADING: Final = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "coord_control.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
#: Presses it when they are loaded, and the command has not begun.
_LOADED: Final = """
def interrupted(application):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("it did not take effect")

typer.main.get_command = interrupted
"""


@pytest.mark.parametrize(
    ("moment", "code"), [(_LOADING, -signal.SIGINT), (_LOADED, 128 + signal.SIGINT)], ids=["loading", "loaded"]
)
def test_ctrl_c_ends_it_without_a_traceback(moment: str, code: int) -> None:
    # Whoever runs the tests in the background has it ignored.
    program = "import os, signal, sys, typer\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += f"{moment}\nfrom coord_control.cli.entry import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_stays_ignored_where_the_shell_ignores_it() -> None:
    program = f"import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{_LOADING}"
    program += "sys.argv[1:] = ['--version']\nfrom coord_control.cli.entry import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("coordctl ")
