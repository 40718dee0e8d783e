"""How long a test waits for what must happen.

Only a test that fails waits that long, and nothing is measured with it; so it is enough for a machine that is many
times slower than usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["SECONDS", "eventually"]

SECONDS: Final = 600


def eventually(condition: Callable[[], object], trouble: Callable[[], str] = str, pause: float = 0.05) -> None:
    """Wait until it is true, with a pause between two looks.

    Raises:
        AssertionError: it has not become so, with what ``trouble`` says.
    """
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"this did not happen in time\n{trouble()}"
        time.sleep(pause)
