"""``upgrade_streaming_job``: the program that the job's definition names now replaces the one that runs.

A new release of the code location changes ``start`` in the definition, which changes nothing that runs. This action
brings the running job there: see :mod:`coord_control.launch.upgrade_request`. If the run is killed, re-execute it from
failure: it continues the same upgrade.

Threads: blocks the step's thread.
"""

from __future__ import annotations

import os
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.metadata import Metadata, entries
from coord_control.dagster.runs.action_configs import UpgradeConfig
from coord_control.dagster.runs.driver_start import program_of, start_environment
from coord_control.dagster.runs.idempotency import attempt_key
from coord_control.dagster.spec import StartSpec
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files
from coord_control.durable.job_folder.upgrade_record import UpgradeRecord, UpgradeStep
from coord_control.errors import LaunchFailed, NotUpgradable
from coord_control.launch.upgrade_request import UpgradeRequest, said, upgrade_job

__all__ = ["upgrade"]

#: An attempt that is repeated might end otherwise.
_REPEATABLE: Final = frozenset({UpgradeStep.NOT_STOPPED})


def upgrade(
    context: dg.OpExecutionContext, client: ControlClient, job: str, start: StartSpec, config: UpgradeConfig
) -> Metadata:
    """Upgrade a job to the program of its definition, and return the metadata that the run shows.

    Raises:
        dagster.Failure: the new program does not run; says what does.
    """
    program = program_of(start)
    request = UpgradeRequest(
        script=os.path.join(program.folder, program.script),
        args=program.args,
        environment=start_environment(client, start),
        verify_seconds=config.verify_seconds,
        start_seconds=config.timeout_seconds,
        rollback=config.rollback,
        accept_idle=config.accept_idle,
        allow_non_restored_state=config.allow_non_restored_state,
        key=attempt_key(context),
    )
    try:
        record = upgrade_job(client, job, request, storage=_storage, tell=context.log.info)
    except (NotUpgradable, LaunchFailed) as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    except dg.DagsterExecutionInterruptedError:
        context.log.warning("The upgrade was interrupted. Re-execute this run from failure to continue it")
        raise
    if record.step is not UpgradeStep.DONE:
        raise dg.Failure(said(record), metadata=_shown(record), allow_retries=record.step in _REPEATABLE)
    context.log.info(said(record))
    return _shown(record)


def _shown(record: UpgradeRecord) -> Metadata:
    return entries(
        {
            "upgrade": record.id,
            "step": record.step.value,
            "old_program": " ".join([record.old.script, *record.old.args]),
            "new_program": " ".join([record.new.script, *record.new.args]),
            "path": None if record.savepoint is None else dg.MetadataValue.path(record.savepoint),
            "generation": record.generation,
        }
    )


def _storage(path: str) -> Files:
    if (files := without_spark(path)) is not None:
        return files
    raise dg.Failure(
        f"Dagster does not start Spark to read {path}: run coordctl upgrade on this machine, which does. For S3, Azure "
        "and Google Cloud, Dagster reads it without Spark after: pip install 'coord-control[objects]'",
        allow_retries=False,
    )
