"""What a job's program declares: its operators, their coordinators, and in which query each of them is used.

Threads: declarations are made before and while queries are started, which the job does one at a time; reading them is
safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.coordinators.requests import Request
from coord_control.durable.job_folder.lineage import LineageOperator
from coord_control.durable.restore.seeds import Rescale
from coord_control.errors import DeclarationError, DuplicateOperator, InvalidName, OperatorReused
from coord_control.ids import OperatorUid, QueryName, is_valid_name
from coord_control.protocol.operator import OperatorSpec
from coord_control.spark.job.operator_handle import Operator, operators_in_plan
from coord_control.spark.job.rescale import RescaleFunction, rescaling
from coord_control.spark.job.saved_checks import OperatorModels
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.wake.waking_rows import WakingRows
from coord_control.spark.worker.model_codec import EventTypes, StateType
from coord_control.spark.worker.subtask import TaskPlan

__all__ = ["Declarations"]


class Declarations:
    """The operators of one job.

    Args:
        bind: makes the driver's side of a coordinator.
        plan: makes what an operator's tasks need.
        waking: makes the rows that wake an operator.
        snapshot_timeout_seconds: how long a coordinator may take to give its state.
    """

    def __init__(
        self,
        bind: Callable[[DeclaredCoordinator], BoundCoordinator],
        plan: Callable[[OperatorUid, int, StateType[Any], EventTypes, EventTypes], TaskPlan],
        waking: Callable[[OperatorUid, int], WakingRows],
        snapshot_timeout_seconds: float,
    ) -> None:
        self._bind = bind
        self._plan = plan
        self._waking = waking
        self._snapshot_timeout = snapshot_timeout_seconds
        self._operators: dict[OperatorUid, Operator] = {}
        self.coordinators: dict[OperatorUid, BoundCoordinator] = {}
        self.rescales: dict[OperatorUid, Rescale] = {}  #: how states are redistributed after a restore
        self.owner: dict[OperatorUid, QueryName] = {}  #: of the operators that are part of a started query

    def operator(
        self,
        uid: str,
        coordinator: OperatorCoordinator,
        parallelism: int,
        state: type[BaseModel],
        down: Sequence[type[BaseModel]],
        up: Sequence[type[BaseModel]],
        rescale: RescaleFunction | None = None,
        requests: Sequence[type[Request[Any]]] = (),
        *,
        wake: bool = False,
    ) -> Operator:
        """Declare an operator; see :meth:`coord_control.Job.operator`."""
        if not is_valid_name(uid):
            raise InvalidName("operator", uid)
        operator_uid = OperatorUid(uid)
        if operator_uid in self._operators:
            raise DuplicateOperator("operator", uid)
        if used := next((bound.uid for bound in self.coordinators.values() if bound.coordinator is coordinator), None):
            raise DeclarationError(f"operators {used!r} and {uid!r} share a coordinator; make one for each operator")
        if parallelism < 1:
            raise ValueError(f"operator {uid!r}: parallelism is {parallelism}, it must be at least 1")
        down_types, up_types = EventTypes(uid, "down", down), EventTypes(uid, "up", up)
        state_type = StateType(uid, state)
        request_types = RequestTypes(uid, requests)
        declared = DeclaredCoordinator(operator_uid, coordinator, parallelism, down_types, up_types, request_types)
        bound = self._bind(declared)
        spec = OperatorSpec(
            uid=operator_uid,
            parallelism=parallelism,
            observes_attempts=bound.observes_attempts,
            snapshot_timeout_seconds=self._snapshot_timeout,
            wake=wake,
        )
        plan = replace(self._plan(operator_uid, parallelism, state_type, down_types, up_types), wake=wake)
        waking = self._waking(operator_uid, parallelism) if wake else None
        operator = self._operators[operator_uid] = Operator(spec, plan, waking)
        self.coordinators[operator_uid] = bound
        if rescale is not None:
            self.rescales[operator_uid] = rescaling(uid, state_type, down_types, parallelism, rescale)
        return operator

    def in_query(self, writer: DataStreamWriter, query: QueryName) -> list[OperatorUid]:
        """Return the operators that are part of a query that is about to start.

        Raises:
            OperatorReused: one of them belongs to another job, or to another query.
        """
        found = [OperatorUid(uid) for uid in sorted(operators_in_plan(writer._df))]
        for uid in found:
            if uid not in self._operators:
                raise OperatorReused(uid, "another job", f"query {query!r}")
            if uid in self.owner:
                raise OperatorReused(uid, f"query {self.owner[uid]!r}", f"query {query!r}")
        return found

    def own(self, operators: Iterable[OperatorUid], query: QueryName) -> None:
        """Record which query these operators are part of: it has been started, or waits for a restore."""
        for uid in operators:
            self.owner[uid] = query

    def disown(self, operators: Iterable[OperatorUid]) -> None:
        """Forget which query these operators are part of: it has not been started."""
        for uid in operators:
            self.owner.pop(uid, None)

    def spec(self, uid: OperatorUid) -> OperatorSpec:
        return self._operators[uid].spec

    def record(self, uid: OperatorUid) -> LineageOperator:
        """Return what a lineage remembers of an operator."""
        plan = self._operators[uid].plan
        return LineageOperator(
            parallelism=plan.parallelism,
            state=plan.state.model.__qualname__,
            down=tuple(model.__qualname__ for model in plan.down.models),
            up=tuple(model.__qualname__ for model in plan.up.models),
            wake=plan.wake,
        )

    def state(self, uid: OperatorUid) -> StateType[Any]:
        return self._operators[uid].plan.state

    def models(self, uid: OperatorUid) -> OperatorModels:
        """Return what the saved part of an operator is read with."""
        plan = self._operators[uid].plan
        return OperatorModels(plan.state, self.coordinators[uid].coordinator, plan.down, plan.up)

    def unused(self) -> list[OperatorUid]:
        """Operators that are part of no started query, sorted."""
        return sorted(set(self._operators) - set(self.owner))
