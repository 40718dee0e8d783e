"""Whether one of our runs may still report a checkpoint that it has requested.

The control database records the requester (``requested_by``): a run or a schedule. Until such a run, and any retry that
waits for the same checkpoint, has finished, the sensor leaves the checkpoint to it. Dagster considers a killed run
finished once its run monitoring, or a user, has marked it.

Threads: one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

__all__ = ["NOT_OVER", "RUN_ACTOR", "SCHEDULE_TAG", "OwnRuns", "is_own", "schedule_actor"]

#: The tag that names the schedule of a run.
SCHEDULE_TAG: Final = "dagster/schedule_name"

RUN_ACTOR: Final = "dagster:run:"
_SCHEDULE_ACTOR: Final = "dagster:schedule:"

#: A run in one of these states may still do something.
NOT_OVER: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.MANAGED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

_ROOT_TAG: Final = "dagster/root_run_id"
_WILL_RETRY_TAG: Final = "dagster/will_retry"
_RETRY_TAG: Final = "dagster/auto_retry_run_id"
#: Dagster's daemon starts an automatic retry within seconds; if the daemon is down, the sensor must not wait for it.
_RETRY_STARTS_WITHIN: Final = timedelta(minutes=10)


def schedule_actor(name: str) -> str:
    """Return the actor of a schedule, which the requests of its runs carry, and by which its savepoints are found."""
    return f"{_SCHEDULE_ACTOR}{name}"


def is_own(actor: str | None) -> bool:
    """Return whether the requester is Dagster, perhaps in another deployment."""
    return actor is not None and actor.startswith((RUN_ACTOR, _SCHEDULE_ACTOR))


class OwnRuns:
    """The runs of one deployment, cached for one tick."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._known: dict[str, bool] = {}

    def are_over(self, actor: str) -> bool:
        """Return whether no run is left that would report this actor's checkpoints, or the run is unknown."""
        if actor not in self._known:
            self._known[actor] = self._look(actor)
        return self._known[actor]

    def _look(self, actor: str) -> bool:
        if actor.startswith(_SCHEDULE_ACTOR):
            tags = {SCHEDULE_TAG: actor.removeprefix(_SCHEDULE_ACTOR)}
            return not self._some(tags) and not self._will_retry(tags)
        run = self._instance.get_run_by_id(actor.removeprefix(RUN_ACTOR))
        if run is None:
            return True
        tags = {_ROOT_TAG: run.tags.get(_ROOT_TAG, run.run_id)}
        if not run.is_finished or self._some(tags):
            return False
        return not self._will_retry(tags) and not self._retry_is_due(run.run_id)

    def _some(self, tags: Mapping[str, str]) -> bool:
        return bool(self._instance.get_runs(filters=dg.RunsFilter(tags=tags, statuses=NOT_OVER), limit=1))

    def _will_retry(self, tags: Mapping[str, str]) -> bool:
        runs = self._instance.get_runs(filters=dg.RunsFilter(tags={**tags, _WILL_RETRY_TAG: "true"}), limit=1)
        return bool(runs) and self._retry_is_due(runs[0].run_id)

    def _retry_is_due(self, run_id: str) -> bool:
        record = self._instance.get_run_record_by_id(run_id)
        if record is None or record.dagster_run.tags.get(_WILL_RETRY_TAG) != "true":
            return False
        if _RETRY_TAG in record.dagster_run.tags:
            return False  # the retry was started, and counts as a run itself
        ended = record.end_time
        return ended is None or datetime.fromtimestamp(ended, UTC) > datetime.now(UTC) - _RETRY_STARTS_WITHIN
