"""All parts of a control database in one object.

Threads: any.
"""

from __future__ import annotations

from coord_control.storage.audit import Audit
from coord_control.storage.changes import Changes
from coord_control.storage.checkpoints import Checkpoints
from coord_control.storage.commands import Commands
from coord_control.storage.database import Database
from coord_control.storage.fleet import Fleets
from coord_control.storage.jobs import Jobs
from coord_control.storage.live_history import LiveHistory
from coord_control.storage.recoveries import Recoveries
from coord_control.storage.samples import Samples
from coord_control.storage.savepoints import Savepoints

__all__ = ["ControlStore"]


class ControlStore:
    """The parts of a control database, over one ``Database``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.jobs = Jobs(database)
        self.commands = Commands(database)
        self.checkpoints = Checkpoints(database)
        self.savepoints = Savepoints(database)
        self.samples = Samples(database)
        self.recoveries = Recoveries(database)
        self.live = LiveHistory(database)
        self.audit = Audit(database)
        self.changes = Changes(database)
        self.fleets = Fleets(database)

    def close(self) -> None:
        """Close the database's connections."""
        self.database.close()
