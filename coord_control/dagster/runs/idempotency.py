"""One request, no matter how often a step runs: the idempotency key of a run's request to a job.

A step runs again if its retry policy requires it, if its worker is lost and resumed, if Dagster retries the run, or if
a user re-executes it from failure. All of these mean the same request, so they use the same key and find the command of
the earlier attempt: they wait for it, or take its result. Re-executing all steps is a new request, with the key of
another run.

A command that failed is not reused: the next attempt makes a new request, under the next number.

    run 1: step      -> dagster:run 1:step#1   the worker is killed
    run 1: resumed   -> dagster:run 1:step#1   the same savepoint; it fails
    run 2: retry     -> dagster:run 1:step#2   a new one
    run 3: all steps -> dagster:run 3:step#1   a new one

Two concurrent attempts also use the same key, and the database lets only one of them create the command.

Threads: blocks the step's thread, on the control database or on Dagster's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import dagster as dg

import coord_control as cc
from coord_control.control.commands import Command
from coord_control.storage.records import CommandRecord, CommandState

__all__ = ["Asked", "StepContext", "ask_once", "attempt_key", "first_run", "newest_request"]

StepContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext

_RETRY_NUMBER_TAG: Final = "dagster/retry_number"
#: Set by Dagster on runs that a user, or a policy, re-executes from failure.
_FROM_FAILURE_TAGS: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_STEP_CHARACTERS: Final = 180  # the control database keeps keys of 256


@dataclass(frozen=True, slots=True)
class Asked:
    """A command, and whether an earlier attempt had requested it."""

    command: CommandRecord
    was_known: bool


def attempt_key(context: StepContext) -> str:
    """Return the common prefix of the keys of all attempts at this step; it names the run of the first attempt."""
    step = context.get_step_execution_context().step.key
    if len(step) > _STEP_CHARACTERS:
        step = hashlib.sha256(step.encode()).hexdigest()
    return f"dagster:{first_run(context)}:{step}"


def first_run(context: StepContext) -> str:
    """Return the id of the run of the first attempt, which may have been deleted from Dagster's history."""
    run, seen = context.run, {context.run.run_id}
    while run.parent_run_id is not None and run.parent_run_id not in seen and _continues_parent(run):
        parent = context.instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            return run.parent_run_id
        run = parent
        seen.add(run.run_id)
    return run.run_id


def ask_once(
    client: cc.ControlClient, job: str, base: str, command: Command[Any], expires_seconds: float | None = None
) -> Asked:
    """Send a request, unless that of an earlier attempt is pending or has succeeded.

    Args:
        base: see :func:`attempt_key`.
        expires_seconds: see :class:`~coord_control.control.client.control_client.ControlClient`.

    Raises:
        KeyReused: the request of the earlier attempt was a different one.
        CoordControlError: see :meth:`~coord_control.control.client.control_client.ControlClient.submit`.
    """
    key, known = _newest(client, job, base)
    if known is not None and known.is_finished and known.state is not CommandState.COMPLETED:
        key, known = _key(base, _number(known.key) + 1), None
    # Also sent if the command exists: that returns it, provided that the request is the same.
    return Asked(client.submit(job, command, key=key, expires_seconds=expires_seconds), was_known=known is not None)


def newest_request(client: cc.ControlClient, job: str, base: str) -> CommandRecord | None:
    """Return the newest command of this step, finished or not, or None if it has not sent a request yet."""
    return _newest(client, job, base)[1]


def _newest(client: cc.ControlClient, job: str, base: str) -> tuple[str, CommandRecord | None]:
    newest, number = None, 1
    while (found := client.command_of_key(job, _key(base, number))) is not None:
        newest, number = found, number + 1
    return (_key(base, 1), None) if newest is None else (newest.key, newest)


def _key(base: str, number: int) -> str:
    return f"{base}#{number}"


def _number(key: str) -> int:
    return int(key.rpartition("#")[2])


def _continues_parent(run: dg.DagsterRun) -> bool:
    return _RETRY_NUMBER_TAG in run.tags or any(run.tags.get(tag) == "true" for tag in _FROM_FAILURE_TAGS)
