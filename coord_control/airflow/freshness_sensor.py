"""A sensor for jobs whose checkpoints must not be too old.

Threads: the task's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from coord_control.airflow.freshness import fresh_checkpoint
from coord_control.airflow.hook import DEFAULT_CONNECTION, CoordControlHook
from coord_control.airflow.task_failure import failing
from coord_control.airflow.task_result import Metadata, checkpoint_metadata
from coord_control.airflow.triggers import FreshnessTrigger
from coord_control.control.client.control_client import ControlClient

__all__ = ["CheckpointFreshnessSensor"]


class CheckpointFreshnessSensor(BaseSensorOperator):
    """Succeeds when the newest completed checkpoint or savepoint of a job is young enough.

    The result is the metadata of that checkpoint.

    Args:
        job: the job.
        max_age: the largest time since its completion, in seconds or as a ``timedelta``.
        kind: ``checkpoint`` or ``savepoint``, or None for either.
        conn_id: the connection to the control database.
        deferrable: look from the triggerer, without a worker.
        kwargs: those of every sensor: ``timeout``, ``poke_interval``, ``soft_fail`` and others.

    Raises:
        AirflowFailException: there is no such job.
        AirflowSensorTimeout: there was no such checkpoint within ``timeout``.
    """

    template_fields: ClassVar[Sequence[str]] = ("job", "kind", "conn_id")

    def __init__(
        self,
        *,
        job: str,
        max_age: float | timedelta,
        kind: Literal["checkpoint", "savepoint"] | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.max_age = max_age
        self.kind = kind
        self.conn_id = conn_id
        self.deferrable = deferrable

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Look once, and then wait in the triggerer, or here if the sensor is not deferrable."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found.is_done:
            return found.xcom_value
        self.defer(
            trigger=FreshnessTrigger(
                conn_id=self.conn_id,
                job=self.job,
                kind=self.kind,
                max_age_seconds=self._max_age_seconds,
                poke_seconds=float(self.poke_interval),
            ),
            method_name="resume",
            timeout=timedelta(seconds=self.timeout),
        )
        raise AssertionError("defer() raises")

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Look once."""
        with failing(), CoordControlHook(self.conn_id).client() as client:
            found = fresh_checkpoint(client, self.job, self.kind, self._max_age_seconds, self.log.info)
            return PokeReturnValue(False) if found is None else PokeReturnValue(True, self._metadata(client, found.id))

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Return the metadata of the checkpoint that the trigger has found; if it met an error, look again."""
        checkpoint = event["checkpoint"]
        if checkpoint is None:
            return self.execute(context)
        with failing(), CoordControlHook(self.conn_id).client() as client:
            return self._metadata(client, checkpoint)

    @property
    def _max_age_seconds(self) -> float:
        return self.max_age.total_seconds() if isinstance(self.max_age, timedelta) else float(self.max_age)

    def _metadata(self, client: ControlClient, checkpoint: int) -> Metadata:
        report = client.checkpoint_report(self.job, checkpoint)
        return checkpoint_metadata(report.checkpoint, report.job)
