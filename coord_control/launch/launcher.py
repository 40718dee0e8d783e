"""What a launcher does: it starts programs somewhere, finds them again, and ends them.

Dagster's ``start_streaming_job``, its restart of dead jobs, and upgrades start programs through it.
:class:`~coord_control.launch.local_launcher.LocalLauncher` runs ``coordctl run`` on this machine.

The caller may die at any moment and ask again. So a launch has a *slot*, a name in which one program at
a time is alive, and what is known of it outlives the process that asked.

Threads: a launcher may be used by one thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coord_control.durable.job_folder.upgrade_record import Program

__all__ = ["Launch", "Launcher"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a program.

    Attributes:
        request: what the caller named it by; the same in all attempts of one request.
        before: the newest generation of the job's driver before the launch, as the caller gave it.
        log_file: where the output of the program goes: a path, or the URL of a page.
        process: what identifies it where it runs, such as a process id; None if the launcher died before it knew.
    """

    request: str
    before: int
    log_file: str
    process: str | None = None


class Launcher(Protocol):
    """Starts programs, each in a slot.

    A driver that it starts has to get the program's command line, and the environment variables of the launcher. It
    counts as alive until its process, and everything that would start it again, has ended.
    """

    def launch(
        self, slot: str, program: Program, *, request: str, before: int = 0, log_file: str | None = None
    ) -> Launch | None:
        """Start a program, or return None if something in the slot is alive, or is being launched.

        Args:
            log_file: where its output goes; by default the launcher chooses.

        Raises:
            LaunchFailed: it cannot be started.
        """
        ...

    def newest(self, slot: str) -> Launch | None:
        """Return the newest launch in a slot, alive or not; None if there was none."""
        ...

    def has_begun(self, slot: str) -> bool:
        """Return whether the newest launch has got as far as its program.

        If not, and nothing is alive, its launcher died before it started anything.
        """
        ...

    def is_alive(self, slot: str) -> bool:
        """Return whether a program in the slot is alive, or is being launched."""
        ...

    def stop(self, slot: str, seconds: float) -> bool:
        """End the program in a slot cleanly; return whether it has ended after ``seconds``."""
        ...

    def tail(self, slot: str, lines: int) -> str:
        """Return the last lines of its output; empty if they cannot be read."""
        ...
