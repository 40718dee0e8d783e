"""What a program has of a live value: columns to use in expressions, and its value.

Threads: any.
"""

from __future__ import annotations

import uuid
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from pyspark.sql import Column
from pyspark.sql import functions as F

from coord_control.spark.live.live_model import LiveModel
from coord_control.spark.live.live_values import LiveRequest, LiveValues

__all__ = ["Live"]

Model = TypeVar("Model", bound=BaseModel)


class Live(Generic[Model]):
    """A live value of a job; make it with :meth:`coord_control.Job.live`.

    Each field of the model is an attribute: a ``Column`` for any expression of any query of the job. In SQL text a
    field is the function ``live_NAME_FIELD()``. All rows of an epoch see one value, and so does whatever runs it again.

        limits = job.live("limits", Limits(minutes=30))
        late = flights.where(F.col("dep_delay") > limits.minutes)
        late = spark.sql("SELECT * FROM flights WHERE dep_delay > live_limits_minutes()")

    What depends on it cannot be cached or checkpointed, and has no value outside the queries of the job: Spark refuses
    that when it plans it.
    """

    def __init__(self, model: LiveModel[Model], values: LiveValues) -> None:
        self._model = model
        self._values = values

    @property
    def name(self) -> str:
        return self._model.name

    def __getattr__(self, field: str) -> Column:
        if field.startswith("_") or field not in self._model.fields:
            raise AttributeError(f"live value {self._model.name!r} has no field {field!r}")
        return F.expr(f"{self._model.function(field)}()")

    def get(self) -> Model:
        """Return the value that is accepted now; epochs that have begun may see an earlier one.

        Raises:
            LiveModelInvalid: no query has been started yet.
            JobClosed: the job has ended.
        """
        return self._model.load(self._values.facts(self.name).value)

    def set(self, *, expect: int | None = None, timeout_seconds: float = 60.0, **fields: Any) -> int:
        """Change some fields, and wait until the change is accepted: in force from the next epoch of each query.

        Args:
            expect: the version that the value must have; None for any.
            fields: as JSON has them, or as the model does.

        Returns:
            Its version.

        Raises:
            LiveValueInvalid: the value would not fit its model; nothing was changed.
            LiveVersionChanged: it has another version; nothing was changed.
            JobClosed: the job has ended.
            TimeoutError: no query has been started within the time, or the storage hangs; it may still be accepted.
        """
        request = LiveRequest(
            name=self.name,
            fields=to_jsonable_python(fields),
            expect=expect,
            key=uuid.uuid4().hex,
            by="the driver's program",
        )
        return self._values.request(request).result(timeout_seconds).version
