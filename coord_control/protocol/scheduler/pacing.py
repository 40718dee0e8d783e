"""The clockwork of checkpoints: when the next periodic one is due, and when the pause before it is over.

```
due          |-------- period --------|-------- period --------|-------- period --------|
checkpoint   [=====]                  [================================]
pause               ----                                                 ----
starts       ^                        ^                                      ^ (due before, waited; not one for each)
```

Periods lie on a grid, so that a late start does not move the next one; periods that passed without a look are left out.
A restart begins a new grid one pause later. All checkpoints and savepoints end with a pause, however they ended: what
it protects is the job's own work.

A completed one may request a rest: then nothing starts, no matter who requested it. That keeps an endless sequence of
savepoints from taking processor time away from the epochs that run in parallel.

Single-threaded; owned by the scheduler. Times are seconds of the clock that ``now`` is taken from.
"""

from __future__ import annotations

from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions

__all__ = ["Pacing"]


class Pacing:
    """When checkpoints may start."""

    __slots__ = ("_pause_from", "_pause_seconds", "_period_seconds", "_rest_until", "next_due")

    def __init__(self, options: CheckpointOptions) -> None:
        self._period_seconds = options.period_seconds
        self._pause_seconds = options.min_pause_seconds
        self._pause_from: float | None = None
        self._rest_until: float | None = None
        self.next_due: float | None = None  #: None: no periodic checkpoints, or not now

    def begin(self, now: float, first_delay_seconds: float | None) -> None:
        """Begin the first grid, when the job runs for the first time. None as delay means one period."""
        if self._period_seconds is not None:
            self.next_due = now + (self._period_seconds if first_delay_seconds is None else first_delay_seconds)

    def stop(self) -> None:
        """Stop the clockwork: nothing is due any more."""
        self.next_due = None

    def restart(self, now: float) -> None:
        """Begin a new grid after a restart of the job: one pause, then its first period."""
        self._pause_from = now
        if self._period_seconds is not None:
            self.next_due = now + self._pause_seconds

    def take_due(self, now: float) -> bool:
        """Return whether a period has come; it is asked once about each."""
        if self.next_due is None or self._period_seconds is None or now < self.next_due:
            return False
        missed = int((now - self.next_due) / self._period_seconds)
        self.next_due += (missed + 1) * self._period_seconds
        return True

    def ended(self, now: float, rest_seconds: float = 0.0) -> None:
        """Begin the pause, and the requested rest, after the end of a checkpoint or savepoint."""
        self._pause_from = now
        if rest_seconds > 0:
            self._rest_until = max(now + rest_seconds, self._rest_until or now)

    @property
    def has_pause(self) -> bool:
        """Whether periodic checkpoints keep a distance from others at all."""
        return self._pause_seconds > 0

    @property
    def pause_ends_at(self) -> float | None:
        """Return when the newest pause ends, or None if there was none."""
        return None if self._pause_from is None or not self.has_pause else self._pause_from + self._pause_seconds

    def is_pause(self, now: float) -> bool:
        """Return whether a periodic checkpoint would come too early."""
        return self.pause_ends_at is not None and now < self.pause_ends_at

    def opens_at(self, *, periodic: bool) -> float | None:
        """Return the earliest start of the next one that pause and rest allow, or None if they allow any time."""
        times = [self._rest_until, self.pause_ends_at if periodic else None]
        return max((at for at in times if at is not None), default=None)
