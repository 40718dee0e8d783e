"""The entry point of ``coordctl``: Ctrl-C ends it without a traceback, also while Python still loads its modules.

Threads: the main thread.
"""

from __future__ import annotations

import importlib
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the command line names."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a shell that starts it in the background has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    application = importlib.import_module("coord_control.cli.main")  # takes half a second
    signal.signal(signal.SIGINT, handler)
    try:
        application.app(prog_name="coordctl")
    except KeyboardInterrupt:  # before the command began
        sys.exit(128 + signal.SIGINT)
