"""Asking once, however often a step is run: the idempotency key under which a run asks a job for something.

A step is run again when its policy says so, when its worker is lost and resumed, when a run is retried by itself, and
when somebody re-executes it from failure. All of these mean the same request, so all of them have the same key, and
find the command that an earlier attempt has asked for: they wait for it, or take its result. Executing everything anew
is another request, with the key of another run.

A command that ended without having been done is not worth finding: the next attempt asks anew, under the next number.

    run 1: step     -> dagster:run 1:step#1   the worker is killed
    run 1: resumed  -> dagster:run 1:step#1   the same savepoint; it fails
    run 2: retry    -> dagster:run 1:step#2   another one
    run 3: all anew -> dagster:run 3:step#1   another one

Two attempts at the same time end with the same key as well, and the database lets only one of them make the command.

Threads: the step's; all functions block on the control database, or on Dagster's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import dagster as dg

import coord_control as cc
from coord_control.storage.records import CommandRecord, CommandState

__all__ = ["Asked", "StepContext", "Submit", "ask_once", "attempt_key", "first_run", "newest_request"]

StepContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext
#: Sends a request under the key that it is given.
Submit: TypeAlias = Callable[[str], CommandRecord]

_RETRY_NUMBER_TAG: Final = "dagster/retry_number"
#: Set by Dagster on runs that somebody, or a policy, re-executes from where they failed.
_FROM_FAILURE_TAGS: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_STEP_CHARACTERS: Final = 180  # the control database keeps keys of 256


@dataclass(frozen=True, slots=True)
class Asked:
    """A command, and whether an earlier attempt had asked for it."""

    command: CommandRecord
    was_known: bool


def attempt_key(context: StepContext) -> str:
    """What the keys of all attempts at this step begin with; it names the run in which the first one was made."""
    step = context.get_step_execution_context().step.key
    if len(step) > _STEP_CHARACTERS:
        step = hashlib.sha256(step.encode()).hexdigest()
    return f"dagster:{first_run(context)}:{step}"


def first_run(context: StepContext) -> str:
    """The id of the run in which the first of all attempts was made; it may be gone from Dagster's history."""
    run, seen = context.run, {context.run.run_id}
    while run.parent_run_id is not None and run.parent_run_id not in seen and _goes_on(run):
        parent = context.instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            return run.parent_run_id
        run = parent
        seen.add(run.run_id)
    return run.run_id


def ask_once(client: cc.ControlClient, job: str, base: str, submit: Submit) -> Asked:
    """Ask for something, unless an earlier attempt has done so and that is not to no avail.

    Args:
        base: see :func:`attempt_key`.
        submit: is also called when the command is there already: it is given back, if it is the same request.

    Raises:
        KeyReused: the earlier attempt has asked for something else.
        CoordControlError: whatever ``submit`` raises.
    """
    key, known = _newest(client, job, base)
    if known is not None and known.is_finished and known.state is not CommandState.COMPLETED:
        key, known = _key(base, _number(known.key) + 1), None
    return Asked(submit(key), was_known=known is not None)


def newest_request(client: cc.ControlClient, job: str, base: str) -> CommandRecord | None:
    """The newest command of this step, which may be over; None: nothing has been asked for yet."""
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


def _goes_on(run: dg.DagsterRun) -> bool:
    return _RETRY_NUMBER_TAG in run.tags or any(run.tags.get(tag) == "true" for tag in _FROM_FAILURE_TAGS)
