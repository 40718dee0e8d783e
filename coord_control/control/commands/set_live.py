"""``set_live``: changes a live value of the job, exactly once.

Taken over, it is carried out again: the log of the live values knows the command by its id, so a change that is durable
is found and not made a second time.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from coord_control.control.execution.command import Command, Name
from coord_control.control.execution.execution import Execution, Workplace, job_closed
from coord_control.control.execution.outcomes import CommandResult, completed, outcome_of
from coord_control.errors import Fenced, JobClosed, StoreUnavailable
from coord_control.protocol.job_facts import LiveFacts, LiveUse
from coord_control.protocol.records import MAX_LIVE_BYTES
from coord_control.storage.records import CommandKind, CommandRecord, LiveValueRecord, Outcome

__all__ = ["LiveExecution", "LiveInQuery", "LiveResult", "SetLive"]

#: The model's own limit is for the whole value; this keeps the row of the command small.


class LiveInQuery(BaseModel):
    """A live value in one query."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int  #: that its newest epoch has seen
    since: int  #: the first epoch that has seen it
    next_epoch: int | None = None  #: from which on the accepted version is in force; None if it is already


class LiveResult(CommandResult):
    """A live value that is accepted: durable, and in force from the next epoch of each query."""

    name: str
    version: int
    value: dict[str, JsonValue]
    by: str
    at: datetime.datetime
    queries: dict[str, LiveInQuery] = Field(default_factory=dict)  #: those in which an epoch has asked for live values

    @classmethod
    def of(cls, facts: LiveFacts) -> LiveResult:
        """Return the result for what a driver knows."""
        return cls(
            name=facts.name,
            version=facts.version,
            value=json.loads(facts.value),
            by=facts.by,
            at=datetime.datetime.fromtimestamp(facts.at_seconds, datetime.UTC),
            queries=_in_queries({str(query): use for query, use in facts.uses.items()}),
        )

    @classmethod
    def recorded(cls, value: LiveValueRecord) -> LiveResult:
        """Return the result for what the control database knows."""
        return cls(
            name=value.name,
            version=value.version,
            value=value.value,
            by=value.by,
            at=value.at,
            queries=_in_queries(value.uses),
        )

    def text(self, job: str) -> str:
        fields = " ".join(f"{name}={_shown(value)}" for name, value in self.value.items())
        by = f", set by {self.by}" if self.by else ""
        lines = [f"{self.name} of job {job} has version {self.version}{by}: {fields}"]
        for query, use in sorted(self.queries.items()):
            now = f"version {use.version} since epoch {use.since}"
            soon = "" if use.next_epoch is None else f", version {self.version} from epoch {use.next_epoch} on"
            lines.append(f"query {query}: {now}{soon}")
        return "\n".join(lines)


class SetLive(Command[LiveResult]):
    """Change fields of a live value."""

    kind: ClassVar = CommandKind.SET_LIVE
    result: ClassVar = LiveResult

    name: Name
    fields: Mapping[Name, JsonValue] = Field(min_length=1)
    expect: Annotated[int, Field(ge=1)] | None = None  #: the version that it must have

    @model_validator(mode="after")
    def _size(self) -> Self:
        size = len(json.dumps(dict(self.fields), ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass"))
        if size > MAX_LIVE_BYTES:
            raise ValueError(f"the fields take {size} bytes, the limit is {MAX_LIVE_BYTES}")
        return self

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return LiveExecution(command, place, self)


class LiveExecution(Execution):
    """Waits until the change is accepted."""

    def __init__(self, command: CommandRecord, place: Workplace, payload: SetLive) -> None:
        self._command = command
        self._place = place
        self._payload = payload
        self._future: Future[LiveFacts] = Future()

    def begin(self) -> None:
        payload = self._payload
        self._future = self._place.port.set_live(
            payload.name, dict(payload.fields), payload.expect, self._command.id, self._command.requested_by
        )
        self._future.add_done_callback(lambda future: self._place.wake())

    def poll(self) -> Outcome | None:
        if not self._future.done():
            return None
        error: Any = self._future.exception()
        if error is None:
            return completed(LiveResult.of(self._future.result()))
        return None if isinstance(error, JobClosed | Fenced | StoreUnavailable) else outcome_of(error)

    def job_ended(self) -> Outcome | None:
        ending = self._place.ending
        if (outcome := self.poll()) is not None or ending.has_next_driver:
            return outcome
        error = self._future.exception() if self._future.done() else None
        if isinstance(error, StoreUnavailable):  # the change may be durable: a refusal would say that it is not
            return outcome_of(error)
        return job_closed(self._command, ending.by)


def _in_queries(uses: Mapping[str, LiveUse]) -> dict[str, LiveInQuery]:
    return {
        query: LiveInQuery(version=use.version, since=use.since, next_epoch=use.next_epoch)
        for query, use in uses.items()
    }


def _shown(value: JsonValue) -> str:
    """Return a value as text; a text that looks like another value, or has spaces, is in quotes."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value if value.split() == [value] else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
