"""One request, no matter how often a task runs: the idempotency key of a task instance's request to a job.

Airflow runs a task instance again if its worker is lost, if the task is retried, or if a user clears it. As in Dagster
(docs/decisions/0011) these mean the same request, so they find the command of the earlier attempt. Clearing a task that
has succeeded is a new request: the task has reported the result of the first one.

    try 1               -> airflow:DAG/RUN/TASK/-1:ORIGIN#1   the worker is killed
    try 2               -> the same savepoint; it fails
    try 3               -> ...#2   a new one; it is complete, and the task succeeds
    cleared by a user   -> ...#3   a new one

``ORIGIN`` is random and kept in Airflow's task state store, because names alone do not tell apart two deployments with
the same DAG, or a run that was deleted and created again.

Threads: blocks the task's thread, on the supervisor of its worker.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["Attempts"]

_ORIGIN: Final = "coord_control/origin"
_REPORTED: Final = "coord_control/reported"
_ON_STORAGE: Final = "coord_control/on_storage"
_NAME_CHARACTERS: Final = 200  # the control database keeps keys of 256


class Attempts:
    """The attempts at one task instance.

    Args:
        context: the context of the running task.
    """

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._store: Any = context["task_state_store"]
        instance = context["ti"]
        self._names = "/".join([instance.dag_id, instance.run_id, instance.task_id, str(instance.map_index)])
        self.actor = f"airflow:{instance.dag_id}"  #: who asks, for the audit trail

    def key(self) -> str:
        """Return the common prefix of the keys of all attempts."""
        origin = self._store.get(_ORIGIN)
        if origin is None:
            origin = uuid.uuid4().hex[:12]
            self._store.set(_ORIGIN, origin)
        names = self._names
        if len(names) > _NAME_CHARACTERS:
            names = hashlib.sha256(names.encode()).hexdigest()
        return f"airflow:{names}:{origin}"

    @property
    def reported(self) -> frozenset[str]:
        """Return the commands, and restores on the storage, whose results earlier attempts have returned."""
        return frozenset(self._store.get(_REPORTED) or ())

    @property
    def were_on_storage(self) -> bool:
        """Return whether an earlier attempt may have restored the job on its storage."""
        return bool(self._store.get(_ON_STORAGE))

    def go_to_storage(self) -> None:
        """Record that the task is about to restore the job on its storage."""
        self._store.set(_ON_STORAGE, True)

    def report(self, done: str) -> None:
        """Record that the task returns the result of a command (its id), or of a restore on the storage (its key)."""
        self._store.set(_REPORTED, sorted(self.reported | {done}))
