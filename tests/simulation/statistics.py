"""What simulated jobs went through, in numbers: a simulation in which nothing happens proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.records import count

__all__ = ["Statistics"]


@dataclass(slots=True)
class Statistics:
    """What a simulated job went through."""

    steps: int = 0
    crashes: int = 0
    takeovers: int = 0  #: by one driver, from one that lives
    commands_withdrawn: int = 0  #: commands on a stopped job that came at the same moment as a driver, and after it
    rivals: int = 0  #: claims that another driver made between two steps of the same claim
    created_twice: int = 0  #: claims that two drivers wrote, on a storage that looks first and writes later
    restarts_in_place: int = 0
    failovers: int = 0  #: attempts that failed and were run again
    refused: int = 0  #: messages of zombies and other stale attempts
    fenced: int = 0  #: drivers that stopped themselves
    foreign_commits: int = 0  #: of drivers that did not know that they were replaced
    unreported_commits: int = 0  #: that may be the run's own or another driver's
    full_channels: int = 0  #: more waited for a subtask than its mailbox takes
    epochs: int = 0
    epochs_without_rows: int = 0  #: for any operator
    events_down: int = 0
    events_up: int = 0
    writes: int = 0
    skipped_begins: int = 0
    skipped_acks: int = 0
    set_back: int = 0
    damaged: int = 0
    outputs_cut: int = 0
    checkpoints: int = 0  #: triggered
    stored: int = 0
    aborted: int = 0
    failed: int = 0  #: given up by the core: restarts, refusals, timeouts
    cut_down: int = 0  #: events on their way to subtasks, in checkpoints
    cut_up: int = 0
    cut_again: int = 0  #: because Spark had removed a file
    cut_at_rest: int = 0  #: queries that did not run, in a checkpoint of a driver that lives
    late_pins: int = 0  #: threads that pinned for a cut that was void, or for a checkpoint that had failed
    held_in_begins: int = 0  #: begin records with events that a checkpoint held back
    offline_savepoints: int = 0
    planned_in_cuts: int = 0  #: queries cut with an epoch that Spark had planned and not committed
    planned_restored: int = 0  #: and restored
    restores: int = 0
    items: int = 0  #: control events from outside
    items_again: int = 0  #: that were applied more than once, because what was done the first time has not happened
    items_refused: int = 0
    requests: int = 0  #: to coordinators, from outside
    requests_waited: int = 0  #: because no run of the query existed
    states_shown: int = 0
    live_changes: int = 0
    live_answers: int = 0  #: that epochs have seen
    live_records: int = 0
    woken: int = 0  #: epochs that have woken subtasks
    woken_alone: int = 0  #: and that no other source had rows for
    pauses: int = 0  #: of queries, between two epochs

    def add(self, other: Statistics) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def count_cut(self, cut: OperatorCut | None) -> None:
        """An operator was captured for a checkpoint."""
        if cut is not None:
            self.cut_down += sum(map(count, cut.down.values()))
            self.cut_up += sum(count(outbox.events) for outbox in cut.up)
