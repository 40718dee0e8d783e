"""Control events, from the command to the coordinator: validated, numbered, delivered in order, reported.

    claimed --check--> refused, with the problem of each field
        |  number it (in one transaction: from here on it survives any crash)
    accepted --deliver--> applied --a durable record contains it--> completed
                             \\--the coordinator raised--> failed

A record that contains an event also records whether the coordinator refused it, until the desk has confirmed that this
outcome is in the database. So if a driver dies in between, the next one reports the right outcome.

The coordinator of a new driver starts at the number that its state was recorded with. Every accepted event above it is
delivered again, from the database, before any newer one; even completed events, because a restore takes the job back to
before them. While a driver is alive, the operator's own feed repeats them after a failure.

Threads: the listener's methods are called by any thread of the driver and only take notes; everything else runs on the
agent's thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from coord_control.control.agent.stored_numbers import StoredNumbers
from coord_control.control.commands.send_event import EventStage, SendEvent, SendEventResult
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.execution import job_closed
from coord_control.control.execution.outcomes import completed, failed, outcome_of
from coord_control.errors import Fault, OperatorNotFound
from coord_control.ids import OperatorUid
from coord_control.protocol.job_facts import ControlEvent, JobListener
from coord_control.storage.records import CommandRecord, Outcome
from coord_control.storage.store import ControlStore

__all__ = ["EventDesk"]

_log = logging.getLogger("coord_control.control")

_ACCEPTED: Final = "accepted, durable in the database, takes effect with the next epoch"
_APPLIED: Final = "applied by the coordinator, durable with the next epoch"
_WAITING: Final = "waiting for the operator's query to start"
_REFUSED_BEFORE: Final = "the driver that delivered it to the coordinator has ended; its log has the error"


@dataclass(slots=True)
class _Operator:
    """The desk's view of an operator's events.

    Attributes:
        commands: unfinished commands, by event number.
        refused: the reasons, by number, of events for which the coordinator raised; never to be delivered again.
        durable: the last event whose effect is durable.
        sent_to: the subtasks that were sent something, by number of the event that was applied.
        is_synced: whether all events in the database above the coordinator's number were delivered.
    """

    commands: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    durable: int = 0
    sent_to: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_synced: bool = False


class EventDesk(JobListener):
    """The ``send_event`` commands of one job.

    Args:
        wake: tells the agent that there is something to do.
        ended: called with the outcome of a command.
    """

    def __init__(
        self, port: DriverPort, wake: Callable[[], None], ended: Callable[[CommandRecord, Outcome], None]
    ) -> None:
        self._port = port
        self._wake = wake
        self._ended = ended
        self._stored = StoredNumbers(port, wake)
        self._lock = threading.Lock()  # around the notes of the listener
        self._opened: set[str] = set()
        self._durable_news: dict[str, int] = {}
        self._applied_news: list[tuple[str, int, tuple[int, ...]]] = []
        self._refusals: list[tuple[str, int, Exception]] = []
        self._operators: dict[str, _Operator] = {}
        self._commands: dict[str, CommandRecord] = {}  # those without an outcome
        self._unnumbered: list[CommandRecord] = []  # in the order of the requests
        self._said: dict[str, str] = {}

    # A listener of the job.

    def on_feed_open(self, operator: OperatorUid, applied: int) -> None:
        """Note that the operator accepts events."""
        with self._lock:
            self._opened.add(operator)
        self._wake()

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        """Note that the coordinator has handled an event."""
        with self._lock:
            self._applied_news.append((operator, number, subtasks))
        self._wake()

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        """Note that the coordinator raised."""
        with self._lock:
            self._refusals.append((operator, number, error))
        self._wake()

    def on_events_durable(self, operator: OperatorUid, number: int) -> None:
        """Note that the effects of the events up to this number are durable."""
        with self._lock:
            self._durable_news[operator] = max(number, self._durable_news.get(operator, 0))
        self._wake()

    # The agent.

    def __contains__(self, command: str) -> bool:
        return command in self._commands

    @property
    def under_way(self) -> int:
        """Return the number of unfinished commands."""
        return len(self._commands)

    def take(self, command: CommandRecord) -> None:
        """Take a command that was claimed, or taken over from an older driver; a number means that it was accepted."""
        self._commands[command.id] = command
        if command.number is None:
            self._unnumbered.append(command)
        else:
            assert command.operator is not None, "numbers are per operator"
            self._operator(command.operator).commands[command.number] = command.id

    def has_work(self) -> bool:
        """Return whether the database is needed: for numbers, events of an older driver, or refusals."""
        is_synced = all(each.is_synced for uid, each in self._operators.items() if self._is_open(uid))
        return bool(self._unnumbered) or not is_synced or any(each.refused for each in self._operators.values())

    def work(self, store: ControlStore) -> None:
        """Deliver accepted events, and accept new ones. What :meth:`look` has reported was written before.

        Raises:
            DatabaseError: the rest is done the next time.
            GenerationSuperseded: a newer driver accepts the events.
        """
        for facts in self._port.operators():
            self._operator(facts.uid)
        self._forget_refusals()
        for uid, operator in self._operators.items():
            if not operator.is_synced and self._is_open(uid):
                self._sync(store, uid, operator)
        waiting: set[str | None] = set()  # operators whose later events must not overtake an earlier one
        for command in list(self._unnumbered):
            if command.operator in waiting:
                continue
            if self._accept(store, command):
                self._unnumbered.remove(command)
            else:
                waiting.add(command.operator)

    def look(self) -> None:
        """Report what has become durable, or was refused by a coordinator."""
        with self._lock:
            opened, self._opened = self._opened, set()
            durable, self._durable_news = self._durable_news, {}
            applied, self._applied_news = self._applied_news, []
            refusals, self._refusals = self._refusals, []
        for uid in opened:
            self._operator(uid).is_synced = False
            for number in self._port.feed_status(OperatorUid(uid)).refused:
                self._operator(uid).refused.setdefault(number, _REFUSED_BEFORE)
        for uid, number, subtasks in applied:
            self._operator(uid).sent_to[number] = subtasks
        for uid, number, error in refusals:
            self._operator(uid).refused[number] = str(error)
        for uid, number in durable.items():
            operator = self._operator(uid)
            operator.durable = max(operator.durable, number)
        for operator in self._operators.values():
            for number in sorted(operator.commands):
                if (why := operator.refused.get(number)) is not None:
                    outcome = failed("COORDINATOR_FAILED", f"the coordinator refused it: {why}", fault=Fault.USER)
                elif number <= operator.durable:
                    outcome = completed(SendEventResult(number=number, sent_to=operator.sent_to.get(number)))
                else:
                    continue
                self._end(operator.commands.pop(number), outcome)
            operator.sent_to = {
                number: each for number, each in operator.sent_to.items() if number in operator.commands
            }

    def progress(self) -> dict[str, dict[str, Any]]:
        """Return new progress, by command."""
        news: dict[str, dict[str, Any]] = {}
        said: dict[str, dict[str, Any]] = {each.id: {"message": _WAITING} for each in self._unnumbered}
        for operator in self._operators.values():
            for number, command in operator.commands.items():
                if (subtasks := operator.sent_to.get(number)) is None:
                    said[command] = {"message": _ACCEPTED, "stage": EventStage.ACCEPTED.value}
                else:
                    said[command] = {"message": _APPLIED, "stage": EventStage.APPLIED.value, "sent_to": list(subtasks)}
        for command in self._commands:
            if command in said and self._said.get(command) != said[command]["message"]:
                self._said[command] = said[command]["message"]
                news[command] = said[command]
        return news

    def job_ended(self) -> None:
        """Refuse the commands that were not accepted; the next driver determines the outcome of the others."""
        self.look()
        for command in self._unnumbered:
            self._end(command.id, job_closed(command))
        self._unnumbered.clear()

    # Parts.

    def _operator(self, uid: str) -> _Operator:
        return self._operators.setdefault(uid, _Operator())

    def _is_open(self, uid: str) -> bool:
        try:
            return self._port.feed_status(OperatorUid(uid)).applied is not None
        except OperatorNotFound:
            return False

    def _forget_refusals(self) -> None:
        # A refusal without a command was reported, and everything that was reported has been written by now.
        for uid, operator in self._operators.items():
            written = [number for number in operator.refused if number not in operator.commands]
            if written:
                self._port.forget_refusals(OperatorUid(uid), written)
            for number in written:
                del operator.refused[number]

    def _sync(self, store: ControlStore, uid: str, operator: _Operator) -> None:
        status = self._port.feed_status(OperatorUid(uid))
        if status.applied is None:
            return
        job = self._port.facts.name
        for command in store.commands.events_after(job, uid, status.applied, include_completed=True):
            assert command.number is not None, "it was asked for by number"
            if command.number not in operator.refused:
                self._hand_over(command, command.number)
        operator.durable = max(operator.durable, status.durable)
        operator.is_synced = True

    def _accept(self, store: ControlStore, command: CommandRecord) -> bool:
        """Try to accept an event. Return whether it was accepted or finished, so that it need not be tried again."""
        payload = _payload(command)
        try:
            self._port.check_event(payload.operator, payload.event_type, payload.payload, payload.subtask)
            status = self._port.feed_status(OperatorUid(payload.operator))
        except Exception as error:
            self._end(command.id, outcome_of(error))
            return True
        operator = self._operator(payload.operator)
        stored = self._stored.highest(payload.operator)
        if status.applied is None or not operator.is_synced or stored is None:
            return False
        number = store.commands.accept_event(
            command.id, self._port.facts.generation, max(status.applied, status.durable, stored)
        )
        operator.commands[number] = command.id
        self._hand_over(command, number)
        return True

    def _hand_over(self, command: CommandRecord, number: int) -> None:
        payload = _payload(command)
        try:
            event = self._event(payload)
            self._port.feed(number, event)
        except Exception as error:
            # It was accepted by an earlier version of the program, and cannot be delivered to this one.
            _log.error(
                "x control event %d of command %s cannot be delivered to operator %s of this program: %s",
                number,
                command.id,
                payload.operator,
                error,
                extra={"action": "event_undeliverable", "job": self._port.facts.name},
            )
            self._operator(payload.operator).commands.pop(number, None)
            self._end(command.id, outcome_of(error))

    def _event(self, payload: SendEvent) -> ControlEvent:
        return self._port.check_event(
            payload.operator, payload.event_type, payload.payload, payload.subtask, is_accepted=True
        )

    def _end(self, command: str, outcome: Outcome) -> None:
        self._said.pop(command, None)
        if (record := self._commands.pop(command, None)) is not None:
            self._ended(record, outcome)


def _payload(command: CommandRecord) -> SendEvent:
    return SendEvent.model_validate(command.payload)
