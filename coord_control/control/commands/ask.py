"""``ask``: a request to an operator, which changes nothing. Taken over before it expires, it is asked again.

A request is answered until it expires. While the operator cannot answer, because its query is being restarted, it is
asked again.
"""

from __future__ import annotations

import datetime
import json
import time
from concurrent.futures import Future
from typing import ClassVar, Final, Self

from pydantic import Field, JsonValue, model_validator

from coord_control.control.execution.command import Again, Command, Name, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.execution import Execution, Workplace, job_closed
from coord_control.control.execution.outcomes import CommandResult, completed, outcome_of
from coord_control.errors import NotAnswered
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["MAX_REQUEST_BYTES", "Ask", "AskResult"]

MAX_REQUEST_BYTES: Final = 64 * 1024  #: of the JSON text of a request
_AGAIN_SECONDS: Final = 0.1


class AskResult(CommandResult):
    """An answer."""

    answer: JsonValue

    def text(self, job: str) -> str:
        return json.dumps(self.answer, indent=2, ensure_ascii=False)


class Ask(Command[AskResult]):
    """Ask an operator; it has no effect."""

    kind: ClassVar = CommandKind.ASK
    result: ClassVar = AskResult

    operator: Name
    request: Name
    payload: JsonValue = Field(default_factory=dict)

    @model_validator(mode="after")
    def _size(self) -> Self:
        size = len(json.dumps(self.payload, ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass"))
        if size > MAX_REQUEST_BYTES:
            raise ValueError(f"the request takes {size} bytes, the limit is {MAX_REQUEST_BYTES}")
        return self

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return AskExecution(command, self, place)

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        if command.expires_at <= now:
            return outcome_of(NotAnswered(self.operator, "the driver that was asked has died"))
        return Again()

    @property
    def recipient(self) -> str:
        return self.operator


class AskExecution(Execution):
    """One request in progress."""

    def __init__(self, command: CommandRecord, asked: Ask, place: Workplace) -> None:
        self._command, self._asked, self._place = command, asked, place
        # Claimed and expiring by the database's clock; from here on this process's own counts.
        assert command.claimed_at is not None, "it was claimed"
        self._seconds = (command.expires_at - command.claimed_at).total_seconds()
        self._deadline = time.monotonic() + self._seconds
        self._again_at = 0.0
        self._answer: Future[JsonValue] = Future()

    def begin(self) -> None:
        self._ask()

    def poll(self) -> Outcome | None:
        now = time.monotonic()
        if not self._answer.done():
            if now < self._deadline:
                return None
            self._answer.cancel()
            why = f"not within {self._seconds:.3g} s; its coordinator is busy, or its query is being restarted"
            return outcome_of(NotAnswered(self._asked.operator, why))
        error = self._answer.exception()
        if error is None:
            return completed(AskResult(answer=self._answer.result()))
        if isinstance(error, NotAnswered) and now < self._deadline:
            if now >= self._again_at:
                self._ask()
            return None
        assert isinstance(error, Exception), "no other is set"
        return outcome_of(error)

    def job_ended(self) -> Outcome | None:
        if self._answer.done() and self._answer.exception() is None:
            return self.poll()
        ending = self._place.ending
        return None if ending.has_next_driver else job_closed(self._command, ending.by)

    def _ask(self) -> None:
        self._again_at = time.monotonic() + _AGAIN_SECONDS
        try:
            self._answer = self._place.port.ask(self._asked.operator, self._asked.request, self._asked.payload)
        except Exception as error:
            self._answer = Future()
            self._answer.set_exception(error)
        self._answer.add_done_callback(lambda _: self._place.wake())
