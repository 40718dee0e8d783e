"""The commands in progress in this driver: starts, polls, cancels and reports them.

Each kind is a small class (:mod:`.checkpoint_commands`, :mod:`.ending_commands`, :mod:`.event_desk`). The executor
dispatches commands to them, and makes sure that each command has exactly one outcome.

Threads: the agent's, except for :meth:`Executor.job_ended`, which is called after that thread has ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from coord_control.control.agent import command_takeover
from coord_control.control.agent.buffer import Fact
from coord_control.control.agent.checkpoint_commands import (
    AbortExecution,
    CheckpointExecution,
    DisposeExecution,
    VerifyExecution,
)
from coord_control.control.agent.driver_port import DriverPort
from coord_control.control.agent.ending_commands import (
    RestartExecution,
    RestoreExecution,
    StopExecution,
    StopWithSavepointExecution,
)
from coord_control.control.agent.event_desk import EventDesk
from coord_control.control.agent.execution import Ending, Execution, Workplace
from coord_control.control.agent.outcomes import outcome_of
from coord_control.control.commands import (
    Abort,
    Dispose,
    Restart,
    Restore,
    SendEvent,
    Stop,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
    Verify,
    parse_command,
)
from coord_control.storage.records import FINISHED_COMMAND_STATES, CommandKind, CommandRecord, Outcome

__all__ = ["Executor"]

_log = logging.getLogger("coord_control.control")


class Executor:
    """Carries out commands.

    Args:
        ended: called with each outcome, once per command.
        has_failed, record, happened: see :class:`Workplace`.
    """

    def __init__(
        self,
        port: DriverPort,
        *,
        wake: Callable[[], None],
        ended: Callable[[str, Outcome], None],
        record: Callable[[CommandRecord, dict[str, Any]], None],
        has_failed: Callable[[int], bool],
        happened: Callable[[Fact], None],
        is_supervised: Callable[[], bool],
    ) -> None:
        self._ended = ended
        self._executions: dict[str, tuple[CommandRecord, Execution]] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._place = Workplace(
            port=port,
            wake=wake,
            is_supervised=is_supervised,
            ending=Ending(),
            cancel=self._cancel_found,
            checkpoint_of=self._checkpoint_of,
            has_failed=has_failed,
            record=record,
            happened=happened,
        )
        self.desk = EventDesk(port, wake, self._event_ended)
        #: Number of outcomes by kind and state. Metrics need each counter to exist before it is first increased.
        self.outcomes = Counter(
            {(kind.value, state.value): 0 for kind in CommandKind for state in FINISHED_COMMAND_STATES}
        )

    def __contains__(self, command: str) -> bool:
        return command in self._executions or command in self.desk

    @property
    def is_busy(self) -> bool:
        """Return whether any command is in progress."""
        return bool(self._executions)

    @property
    def finished(self) -> int:
        """Return the number of commands that were finished here."""
        return self.outcomes.total()

    @property
    def under_way(self) -> int:
        """Return the number of commands in progress."""
        return len(self._executions) + self.desk.under_way

    @property
    def is_ending(self) -> bool:
        """Return whether a command is ending the job."""
        return self._place.ending.has_begun

    @property
    def is_restarting(self) -> bool:
        """Return whether a command is restarting the job."""
        return self._place.ending.is_restart

    def take(self, command: CommandRecord) -> None:
        """Carry out a command that this driver has claimed. Repeated calls are ignored."""
        if command.id in self:
            return
        try:
            payload = parse_command(command.kind, command.payload)
            if isinstance(payload, SendEvent):
                self.desk.take(command)
                return
            execution = self._execution(command, payload)
        except ValidationError as error:
            self._end(command, outcome_of(error))
            return
        self._begin(command, execution)

    def take_over(
        self, command: CommandRecord, found: Outcome | command_takeover.Again | command_takeover.Stop, *, is_early: bool
    ) -> bool:
        """Continue a command that an older driver had claimed.

        Args:
            is_early: whether the job is still being constructed; its constructor then ends it if necessary.

        Returns:
            Whether the job must end before it begins.
        """
        if isinstance(found, Outcome):
            self._end(command, found)
            return False
        # Running queries may be beyond its savepoint already: that is checked when they pause.
        if isinstance(found, command_takeover.Again) or (found.savepoint is not None and not is_early):
            self.take(command)
            return False
        execution = StopExecution(command, Stop(), self._place, found.savepoint)
        if not is_early:
            self._begin(command, execution)
            return False
        self._executions[command.id] = (command, execution)
        return True

    def look(self) -> None:
        """Report the outcomes of the commands that have finished."""
        for command, execution in list(self._executions.values()):
            try:
                outcome = execution.poll()
            except Exception as error:
                outcome = outcome_of(error)
            if outcome is not None:
                self._end(command, outcome)
        self.desk.look()

    def progress(self) -> dict[str, dict[str, Any]]:
        """Return new progress, by command."""
        news = self.desk.progress()
        for command, (_, execution) in self._executions.items():
            said = execution.progress()
            if said is not None and self._said.get(command) != said:
                self._said[command] = news[command] = said
        return news

    def cancel(self, commands: Iterable[CommandRecord]) -> None:
        """Cancel commands."""
        for command in commands:
            self._cancel_found(command.id)

    def job_ended(self, *, is_followed: bool = False, final_error: str | None = None) -> None:
        """Report the outcomes that are known after the end of the job; the next driver determines the others.

        Args:
            is_followed: whether the job has failed and its supervisor restarts it, so that it is not stopped yet.
            final_error: why the job has failed, if no supervisor restarts it after that.
        """
        self._place.ending.final_error = final_error
        for command, execution in list(self._executions.values()):
            is_stop = command.kind in (CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT)
            try:
                outcome = execution.poll() if is_followed and is_stop else execution.job_ended()
            except Exception as error:
                outcome = outcome_of(error)
            if outcome is not None:
                self._end(command, outcome)
        self.desk.job_ended()

    # Parts.

    def _execution(self, command: CommandRecord, payload: Any) -> Execution:
        place = self._place
        match payload:
            case TriggerCheckpoint() | TriggerSavepoint():
                return CheckpointExecution(command, payload, place)
            case Abort():
                return AbortExecution(command, payload, place)
            case Dispose():
                return DisposeExecution(command, payload, place)
            case Verify():
                return VerifyExecution(command, payload, place)
            case Stop():
                return StopExecution(command, payload, place)
            case StopWithSavepoint():
                return StopWithSavepointExecution(command, payload, place)
            case Restart():
                return RestartExecution(command, payload, place)
            case Restore():
                return RestoreExecution(command, payload, place)
        raise AssertionError(f"every kind has its execution, and {command.kind} has none")

    def _begin(self, command: CommandRecord, execution: Execution) -> None:
        who = command.requested_by or "unknown"
        _log.info("< %s %s by %s", command.kind.value, command.id, who, extra={"action": "command"})
        self._executions[command.id] = (command, execution)
        try:
            execution.begin()
        except Exception as error:
            self._end(command, outcome_of(error))

    def _end(self, command: CommandRecord, outcome: Outcome) -> None:
        self._executions.pop(command.id, None)
        self._said.pop(command.id, None)
        if self._place.port.is_fenced():  # the next driver determines the outcome
            return
        self.outcomes[command.kind.value, outcome.state.value] += 1
        why = "" if outcome.error is None else f": {outcome.error.message}"
        _log.info("> %s %s %s%s", command.kind.value, command.id, outcome.state.value, why)
        self._ended(command.id, outcome)

    def _event_ended(self, command: CommandRecord, outcome: Outcome) -> None:
        self._end(command, outcome)

    def _cancel_found(self, command: str) -> bool:
        if command not in self._executions:
            return False
        self._executions[command][1].cancel()
        return True

    def _checkpoint_of(self, command: str) -> int | None:
        execution = self._executions[command][1] if command in self._executions else None
        return execution.checkpoint if isinstance(execution, CheckpointExecution) else None
