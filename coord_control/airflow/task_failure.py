"""Errors of the control plane as failures of a task: what happened, the next step, and whether a retry makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from coord_control.control.client.request_input import InputUnusable
from coord_control.errors import CommandCancelled, CommandTimeout, CoordControlError, Fault, JobNotRunning, KeyReused

__all__ = ["failing", "nothing_done"]


@contextmanager
def failing() -> Iterator[None]:
    """Turn unusable input and errors of the control plane into failures of the task.

    Raises:
        AirflowFailException: a retry would not help.
        AirflowException: it may.
    """
    try:
        yield
    except InputUnusable as error:
        raise nothing_done(str(error)) from error
    except CoordControlError as error:
        kind = AirflowException if _is_worth_a_retry(error) else AirflowFailException
        raise kind(f"{error}. {_next_step(error)}") from error


def nothing_done(problem: str) -> AirflowFailException:
    """Return the failure of a task that found a problem before it did anything."""
    return AirflowFailException(f"{problem}. Nothing was done")


def _is_worth_a_retry(error: CoordControlError) -> bool:
    return error.retry or isinstance(error, CommandCancelled)


def _next_step(error: CoordControlError) -> str:
    if isinstance(error, CommandTimeout):
        return "A retry of the task, or clearing it, waits for the same request."
    if isinstance(error, JobNotRunning):
        return "Then clear the task."
    if isinstance(error, KeyReused):
        return (
            "A task that is retried or cleared repeats its request: trigger a new run of the DAG for a different one."
        )
    if isinstance(error, CommandCancelled):
        return "Running the task again sends a new request."
    if error.retry:
        return "It may succeed when the task runs again."
    if error.fault is Fault.INTERNAL:
        return "This is a bug in coord-control; please report it."
    return "Running the task again without a change will not help."
