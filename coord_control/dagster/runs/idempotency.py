"""One request, no matter how often a step runs: the idempotency key of a run's request to a job.

A step runs again if its retry policy requires it, if its worker is lost and resumed, if Dagster retries the run, or if
a user re-executes it from failure. All of these mean the same request, so they use the same key and find the command of
the earlier attempt: they wait for it, or take its result. Re-executing all steps is a new request, with the key of
another run.

A command that failed is not reused: the next attempt makes a new request, under the next number
(:mod:`coord_control.control.client.request_once`).

    run 1: step      -> dagster:run 1:step#1   the worker is killed
    run 1: resumed   -> dagster:run 1:step#1   the same savepoint; it fails
    run 2: retry     -> dagster:run 1:step#2   a new one
    run 3: all steps -> dagster:run 3:step#1   a new one

Threads: blocks the step's thread, on Dagster's database.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

import dagster as dg

__all__ = ["StepContext", "attempt_key", "first_run"]

StepContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext

_RETRY_NUMBER_TAG: Final = "dagster/retry_number"
#: Set by Dagster on runs that a user, or a policy, re-executes from failure.
_FROM_FAILURE_TAGS: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_STEP_CHARACTERS: Final = 180  # the control database keeps keys of 256


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


def _continues_parent(run: dg.DagsterRun) -> bool:
    return _RETRY_NUMBER_TAG in run.tags or any(run.tags.get(tag) == "true" for tag in _FROM_FAILURE_TAGS)
