"""The records that the control database and its clients return.

Every record is frozen and typed, and ``to_json`` returns all of it as plain JSON. Points in time are aware datetimes in
UTC, durations are seconds, sizes are bytes. Listings leave out some details; each class documents which.

Values; any thread.
"""

from coord_control.ids import CheckpointKind
from coord_control.storage.records import base, checkpoints, commands, fleet, history, jobs
from coord_control.storage.records.base import *
from coord_control.storage.records.checkpoints import *
from coord_control.storage.records.commands import *
from coord_control.storage.records.fleet import *
from coord_control.storage.records.history import *
from coord_control.storage.records.jobs import *

__all__ = ["CheckpointKind"]
__all__ += base.__all__
__all__ += checkpoints.__all__
__all__ += commands.__all__
__all__ += fleet.__all__
__all__ += history.__all__
__all__ += jobs.__all__
