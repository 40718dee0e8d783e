"""The network between subtasks and drivers: messages wait in it until the world delivers one, in whatever order it
likes.

A real connection keeps its order and doubles nothing. This one does neither, so nothing may rest on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.ids import Generation
from coord_control.protocol.messages import Acknowledge, Answer, AttemptEnded, Hello
from tests.simulation.spark import Attempt, Plan, Run, Task

__all__ = ["Connection", "Lost", "Network", "Reply", "Request"]


@dataclass(slots=True, eq=False)
class Connection:
    """One attempt's line to the driver that it was given."""

    token: str
    attempt: Attempt
    task: Task
    run: Run
    plan: Plan
    ack: Acknowledge | None = None  #: what it has sent


@dataclass(frozen=True, slots=True)
class Request:
    connection: Connection
    content: Hello | Acknowledge | AttemptEnded

    def __str__(self) -> str:
        return f"{type(self.content).__name__.lower()} of {self.connection.attempt.id}"


@dataclass(frozen=True, slots=True)
class Lost:
    """The driver's end notices that the connection is gone."""

    connection: Connection

    def __str__(self) -> str:
        return f"end of the connection of {self.connection.attempt.id}"


@dataclass(frozen=True, slots=True)
class Reply:
    connection: Connection
    content: Answer
    generation: Generation

    def __str__(self) -> str:
        return f"{type(self.content).__name__.lower()} for {self.connection.attempt.id}"


Message: TypeAlias = Request | Lost | Reply


@dataclass(slots=True)
class Network:
    """Messages under way, oldest first, and all connections by token."""

    under_way: list[Message] = field(default_factory=list)
    connections: dict[str, Connection] = field(default_factory=dict)

    def connect(self, attempt: Attempt, task: Task, run: Run) -> Connection:
        assert run.epoch is not None
        connection = Connection(attempt.token, attempt, task, run, run.plan)
        self.connections[attempt.token] = connection
        return connection

    def send(self, message: Message) -> None:
        self.under_way.append(message)

    def drop(self, connection: Connection) -> None:
        """Lose everything that is under way on a connection."""
        self.under_way = [message for message in self.under_way if message.connection is not connection]
