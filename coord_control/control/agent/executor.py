"""The commands in progress in this driver: starts, polls, cancels and reports them.

What a kind of command does is in its own module (:mod:`coord_control.control.commands`). The executor makes sure that
each command has exactly one outcome, and that those that end the job begin in their order: a stop does not overtake a
stop with savepoint that was requested before it.

Threads: the agent's, except for :meth:`Executor.job_ended`, which is called after that thread has ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from coord_control.control.agent.event_desk import EventDesk
from coord_control.control.agent.journal import CommandJournal
from coord_control.control.commands import CANCELLABLE, parse_command
from coord_control.control.commands.stop import Stop, StopExecution
from coord_control.control.execution.command import Again, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.ending import Ending
from coord_control.control.execution.execution import Execution, Workplace
from coord_control.control.execution.outcomes import outcome_of
from coord_control.storage.records import FINISHED_COMMAND_STATES, CommandKind, CommandRecord, Outcome

__all__ = ["Executor"]

_log = logging.getLogger("coord_control.control")


class Executor:
    """Carries out commands.

    Args:
        journal: what executions record; it takes each outcome, once per command.
        wake: makes the agent call :meth:`look` soon.
        is_supervised: returns whether a supervisor restarts the driver on request.
    """

    def __init__(
        self, port: DriverPort, journal: CommandJournal, *, wake: Callable[[], None], is_supervised: Callable[[], bool]
    ) -> None:
        self._port, self._journal = port, journal
        self._executions: dict[str, tuple[CommandRecord, Execution]] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._line: list[str] = []  # the commands that end the job, in order; only the first one has begun
        self._has_ended = False
        self._ending = Ending(is_supervised)
        self.desk = EventDesk(port, wake, self._end)
        self._place = Workplace(
            port=port, journal=journal, ending=self._ending, events=self.desk, wake=wake, find=self._find
        )
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
    def may_be_cancelled(self) -> bool:
        """Return whether a command in progress can be cancelled."""
        return any(command.kind in CANCELLABLE for command, _ in self._executions.values())

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
        return self._ending.has_begun

    @property
    def is_restarting(self) -> bool:
        """Return whether a command is restarting the job."""
        return self._ending.is_restart

    def take(self, command: CommandRecord) -> None:
        """Carry out a command that this driver has claimed. Repeated calls are ignored."""
        if command.id in self:
            return
        try:
            payload = parse_command(command.kind, command.payload)
        except ValidationError as error:
            self._end(command, outcome_of(error))
            return
        execution = payload.execution(command, self._place)
        if execution is not None and payload.ends_job:
            self._queue(command, execution)
        elif execution is not None:
            self._begin(command, execution)

    def take_over(self, command: CommandRecord, found: Takeover, *, is_early: bool) -> bool:
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
        if isinstance(found, Again) or (found.savepoint is not None and not is_early):
            self.take(command)
            return False
        execution = StopExecution(command, Stop(), self._place, found.savepoint)
        if not is_early:
            self._queue(command, execution)
            return False
        self._executions[command.id] = (command, execution)
        return True

    def look(self) -> None:
        """Report the outcomes of the commands that have finished."""
        for command, execution in list(self._executions.values()):
            if command.id not in self._executions:
                continue  # it has ended together with one before it
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
            said = self._waiting(command) or execution.progress()
            if said is not None and self._said.get(command) != said:
                self._said[command] = news[command] = said
        return news

    def cancel(self, commands: Iterable[CommandRecord]) -> None:
        """Cancel commands."""
        for command in commands:
            if (execution := self._find(command.id)) is not None:
                execution.cancel()

    def job_ended(self, *, is_followed: bool = False, final_error: str | None = None) -> None:
        """Report the outcomes that are known after the end of the job; the next driver determines the others.

        Args:
            is_followed: whether the job has failed and its supervisor restarts it, so that it is not stopped yet.
            final_error: why the job has failed, if no supervisor restarts it after that.
        """
        self._has_ended = True
        self._ending.is_followed, self._ending.final_error = is_followed, final_error
        for command, execution in list(self._executions.values()):
            try:
                outcome = execution.job_ended()
            except Exception as error:
                outcome = outcome_of(error)
            if outcome is not None:
                self._end(command, outcome)
        self.desk.job_ended()

    # Parts.

    def _queue(self, command: CommandRecord, execution: Execution) -> None:
        self._executions[command.id] = (command, execution)
        self._line.append(command.id)
        if self._line == [command.id]:
            self._begin(command, execution)

    def _begin_next(self) -> None:
        command, execution = self._executions[self._line[0]]
        if (outcome := execution.poll()) is not None:  # it was cancelled while it waited
            self._end(command, outcome)
        else:
            self._begin(command, execution)

    def _waiting(self, command: str) -> dict[str, Any] | None:
        if command not in self._line[1:]:
            return None
        first = self._executions[self._line[0]][0]
        return {"message": f"waits for command {first.id} ({first.kind.value}), which was requested before it"}

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
        is_first = self._line[:1] == [command.id]
        if command.id in self._line:
            self._line.remove(command.id)
        if self._port.is_fenced():  # the next driver determines the outcome
            return
        self.outcomes[command.kind.value, outcome.state.value] += 1
        why = "" if outcome.error is None else f": {outcome.error.message}"
        _log.info("> %s %s %s%s", command.kind.value, command.id, outcome.state.value, why)
        self._journal.ended(command, outcome)
        if is_first and self._line and not self._has_ended:
            self._begin_next()

    def _find(self, command: str) -> Execution | None:
        found = self._executions.get(command)
        return None if found is None else found[1]
