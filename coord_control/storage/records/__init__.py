"""The records that the control database and its clients return.

Every record is frozen and typed, and ``to_json`` returns all of it as plain JSON. Points in time are aware datetimes in
UTC, durations are seconds, sizes are bytes. Listings leave out some details; each class documents which.

Values; any thread.
"""

from coord_control.ids import CheckpointKind
from coord_control.storage.records import (
    checkpoint_records,
    command_records,
    fleet_records,
    history_records,
    job_records,
    live_records,
    record,
)
from coord_control.storage.records.checkpoint_records import *
from coord_control.storage.records.command_records import *
from coord_control.storage.records.fleet_records import *
from coord_control.storage.records.history_records import *
from coord_control.storage.records.job_records import *
from coord_control.storage.records.live_records import *
from coord_control.storage.records.record import *

__all__ = ["CheckpointKind"]
__all__ += record.__all__
__all__ += checkpoint_records.__all__
__all__ += command_records.__all__
__all__ += fleet_records.__all__
__all__ += history_records.__all__
__all__ += job_records.__all__
__all__ += live_records.__all__
