"""``promote_streaming_job``: a fork takes the place of its parent; see :mod:`coord_control.launch.promotion`.

If the run is killed, re-execute it: it continues the same promotion.

Threads: blocks the step's thread.
"""

from __future__ import annotations

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.metadata import Metadata, entries
from coord_control.dagster.runs.action_configs import PromoteConfig
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files
from coord_control.launch.promotion import Promotion, PromotionState, promote_fork

__all__ = ["promote"]


def promote(context: dg.OpExecutionContext, client: ControlClient, fork: str, config: PromoteConfig) -> Metadata:
    """Promote a fork, or only look at it, and return the metadata that the run shows.

    Raises:
        NotPromotable: the parent was not stopped.
        dagster.Failure: ``check_only``, and the fork is not ready.
    """
    try:
        done = promote_fork(
            client,
            fork,
            storage=_storage,
            parent=config.parent,
            ready_seconds=config.timeout_seconds,
            max_backlog=config.max_backlog,
            check_only=config.check_only,
            tell=context.log.info,
        )
    except dg.DagsterExecutionInterruptedError:
        context.log.warning("A stop of the parent that was requested continues. Re-execute this run to follow it")
        raise
    if done.state is PromotionState.NOT_READY:
        raise dg.Failure(done.text(), metadata=_shown(done), allow_retries=True)
    context.log.info(done.text())
    return _shown(done)


def _shown(done: Promotion) -> Metadata:
    saved = done.savepoint
    return entries(
        {
            "parent": done.parent,
            "step": done.state.value,
            "command": done.command,
            "checkpoint_id": None if saved is None else saved.checkpoint,
            "path": None if saved is None else dg.MetadataValue.path(saved.path),
            "label": None if saved is None else saved.label,
            "problems": "\n".join(done.problems) or None,
            "unknown": "\n".join(done.unknown) or None,
            "way_back": "\n".join(done.way_back) or None,
        }
    )


def _storage(path: str) -> Files:
    if (files := without_spark(path)) is not None:
        return files
    raise dg.Failure(
        f"Dagster does not start Spark to read {path}: run coordctl promote, which does. For S3, Azure and Google "
        "Cloud, Dagster reads it without Spark after: pip install 'coord-control[objects]'",
        allow_retries=False,
    )
