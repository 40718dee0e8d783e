"""Random walks of clients and drivers over commands: each has one outcome, and no step takes one back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from coord_control.errors import CommandNotCancellable, CommandNotFound, GenerationSuperseded, KeyReused
from coord_control.storage.database import Database
from coord_control.storage.records import (
    FINISHED_COMMAND_STATES,
    CommandKind,
    CommandRecord,
    CommandState,
    Outcome,
)
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, request
from tests.storage.kit import register

_RANK = {CommandState.PENDING: 0, CommandState.CLAIMED: 1, **dict.fromkeys(FINISHED_COMMAND_STATES, 2)}

_KINDS = st.sampled_from([CommandKind.TRIGGER_CHECKPOINT, CommandKind.STOP, CommandKind.SEND_EVENT])
_ENDS = st.sampled_from([CommandState.COMPLETED, CommandState.FAILED, CommandState.REFUSED, CommandState.CANCELLED])


class Commands(RuleBasedStateMachine):
    """Two drivers, one of them fenced off at times, and clients that repeat themselves."""

    commands: Bundle[str] = Bundle("commands")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = ControlStore(Database(f"sqlite:///{Path(self.folder.name) / 'control.db'}"))
        self.generation = 1
        self.seen: dict[str, CommandRecord] = {}
        self.numbers: dict[str, int] = {}
        self.ends: dict[str, list[CommandState]] = {}
        register(self.store)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(target=commands, kind=_KINDS, key=st.integers(0, 5), expires=st.sampled_from([-1.0, 600.0]))
    def submit(self, kind: CommandKind, key: int, expires: float) -> Any:
        operator = "op" if kind == CommandKind.SEND_EVENT else None
        try:
            command = self.store.commands.submit(
                request(kind, key=str(key), operator=operator, expires_seconds=expires)
            )
        except KeyReused:
            return multiple()
        return command.id

    @rule()
    def new_driver(self) -> None:
        self.generation += 1
        register(self.store, generation=self.generation)

    @rule()
    def driver_ends(self) -> None:
        self.store.jobs.ended(JOB, self.generation)

    @rule(age=st.integers(0, 1))
    def claim(self, age: int) -> None:
        try:
            claimed = self.store.commands.claim(JOB, self.generation - age)
        except GenerationSuperseded:
            assert age > 0
        else:
            assert all(self.seen[command.id].state == CommandState.PENDING for command in claimed)

    @rule(command=commands, age=st.integers(0, 1), state=_ENDS)
    def finish(self, command: str, age: int, state: CommandState) -> None:
        before = self.seen[command]
        done = self.store.commands.finish(command, self.generation - age, Outcome(state=state))
        assert done == (before.state == CommandState.CLAIMED and before.generation == self.generation - age)
        if done:
            self.ends.setdefault(command, []).append(state)

    @rule(command=commands)
    def cancel(self, command: str) -> None:
        try:
            after = self.store.commands.cancel(command, "ada", cancellable=tuple(CommandKind))
        except CommandNotCancellable:
            assert self.seen[command].state == CommandState.CLAIMED
        else:
            if self.seen[command].state == CommandState.PENDING:
                assert after.state == CommandState.CANCELLED
                self.ends.setdefault(command, []).append(after.state)

    @rule()
    def expire(self) -> None:
        self.store.commands.expire_due()

    @rule()
    def adopt(self) -> None:
        for command in self.store.commands.claimed_by_older(JOB, self.generation):
            assert self.store.commands.adopt(command.id, self.generation)

    @rule(command=commands, at_least=st.integers(0, 3))
    def accept(self, command: str, at_least: int) -> None:
        try:
            number = self.store.commands.accept_event(command, self.generation, at_least)
        except CommandNotFound:
            assert command not in self.numbers
            return
        assert self.numbers.setdefault(command, number) == number

    @invariant()
    def each_has_one_outcome_and_none_goes_back(self) -> None:
        now = {command.id: command for command in self.store.commands.list(limit=1000)}
        assert now.keys() >= self.seen.keys()
        for key, before in self.seen.items():
            after = now[key]
            assert _RANK[after.state] >= _RANK[before.state]
            if before.is_finished:
                assert after == before
        self.seen = now
        outcomes: dict[str, list[str]] = {}
        for entry in self.store.audit.list(limit=10_000):
            if entry.outcome in [state.value for state in FINISHED_COMMAND_STATES]:
                outcomes.setdefault(entry.subject, []).append(entry.outcome)
        assert outcomes == {key: [each.state.value] for key, each in now.items() if each.is_finished}
        assert all(len(ends) == 1 and now[key].state == ends[0] for key, ends in self.ends.items())
        assert len(set(self.numbers.values())) == len(self.numbers)


TestCommands = Commands.TestCase
TestCommands.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
