"""Options of the whole test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the stories in tests/transcripts print now into them; read the difference afterwards",
    )
