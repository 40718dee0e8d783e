"""``verify``: reads all files of a checkpoint or savepoint. Taken over, it is carried out again; it changes nothing."""

from __future__ import annotations

from typing import Any, ClassVar

from coord_control.control.execution.checkpoint_execution import catalog_of
from coord_control.control.execution.command import Command, Path
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import CommandResult, completed
from coord_control.control.wording import human_bytes
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Verify", "VerifyResult"]


class VerifyResult(CommandResult):
    """The result of a verification of all files."""

    path: str
    checkpoint: int
    files: int
    size: int  #: bytes
    problems: tuple[dict[str, Any], ...] = ()  #: path, kind, detail, fatal

    @property
    def is_intact(self) -> bool:
        """Return whether the checkpoint can be restored."""
        return not any(problem.get("fatal", True) for problem in self.problems)

    def text(self, job: str) -> str:
        lines = [f"{problem.get('path', '')}: {problem.get('detail', '')}" for problem in self.problems]
        verdict = "all intact" if self.is_intact else "damaged"
        return "\n".join([*lines, f"{self.path}: {self.files} files, {human_bytes(self.size)}, {verdict}"])


class Verify(Command[VerifyResult]):
    """Read all files of a checkpoint or savepoint, and compare them with its manifest."""

    kind: ClassVar = CommandKind.VERIFY
    result: ClassVar = VerifyResult
    reads: ClassVar = True

    ref: Path

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return VerifyExecution(command, self, place)


class VerifyExecution(ThreadedExecution):
    def __init__(self, command: CommandRecord, payload: Verify, place: Workplace) -> None:
        super().__init__(command, place)
        self._payload = payload

    def work(self) -> Outcome | None:
        catalog = catalog_of(self._place.port)
        with catalog.hold(self._payload.ref, "it is being verified") as entry:
            self.say(f"reads {entry.path}", checkpoint=int(entry.checkpoint))
            metadata = catalog.read(entry)
            problems = list(verify_files(catalog.files_of(entry), entry.path, metadata))
        self._place.journal.savepoint_verified(entry.path, [str(each) for each in problems if each.is_fatal])
        found = [
            {"path": each.path, "kind": each.kind.value, "detail": each.detail, "fatal": each.is_fatal}
            for each in problems
        ]
        result = VerifyResult(
            path=entry.path,
            checkpoint=entry.checkpoint,
            files=metadata.file_count,
            size=metadata.size,
            problems=tuple(found),
        )
        return completed(result, entry.checkpoint)
