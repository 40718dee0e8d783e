"""A question that nobody answers costs no more than one is ready to wait."""

from __future__ import annotations

import threading

import pytest

from coord_control.dagster.runs.patience import within


def test_an_answer() -> None:
    assert within(60.0, lambda: 42) == 42


def test_an_answer_that_is_an_exception_is_no_failure() -> None:
    error = ValueError("kept")
    assert within(60.0, lambda: error) is error


def test_a_failure() -> None:
    def fail() -> None:
        raise ValueError("as it was")

    with pytest.raises(ValueError, match="as it was"):
        within(60.0, fail)


def test_no_answer() -> None:
    answered = threading.Event()
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        within(0.05, answered.wait)
    answered.set()
