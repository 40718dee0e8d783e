"""How long a test waits for what must happen.

Only a test that fails waits that long, and nothing is measured with it; so it is enough for a machine that is many
times slower than usual. Where tests are expected to fail (`tests/mutations`), `COORD_TEST_PATIENCE` shortens it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

__all__ = ["SECONDS", "eventually"]

SECONDS: Final = int(os.environ.get("COORD_TEST_PATIENCE", "600"))


def eventually(condition: Callable[[], object], trouble: Callable[[], str] = str, pause: float = 0.05) -> None:
    """Wait until it is true, with a pause between two looks.

    Raises:
        AssertionError: it has not become so, with what ``trouble`` says.
    """
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"this did not happen in time\n{trouble()}"
        time.sleep(pause)
