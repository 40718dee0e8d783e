"""What the control database tells: values, as the client hands them on.

Every record is frozen and typed, and says all of itself as plain JSON by ``to_json``. Points in time are aware
datetimes in UTC, durations are seconds, sizes are bytes. Listings leave out what only one record's page needs; which
fields these are is said at each class.

Values; any thread.
"""

from coord_control.ids import CheckpointKind
from coord_control.storage.checkpoint_records import (
    CheckpointRecord,
    CheckpointState,
    CheckpointSummary,
    OperatorCheckpoint,
    Percentiles,
    QueryCheckpoint,
    SavepointRecord,
    SubtaskRecord,
)
from coord_control.storage.command_records import (
    FINISHED_COMMAND_STATES,
    CommandError,
    CommandKind,
    CommandRecord,
    CommandRequest,
    CommandState,
    Outcome,
)
from coord_control.storage.fleet_records import (
    Change,
    CheckpointCount,
    CommandCount,
    Fleet,
    FleetCounts,
    JobOverview,
    LagTrend,
    ReasonCount,
)
from coord_control.storage.history_records import (
    AuditRecord,
    OperatorSample,
    QuerySample,
    RecoveryRecord,
)
from coord_control.storage.job_records import (
    ACTIVE_JOB_STATES,
    ENDED_TO_RESTART,
    AgentMetrics,
    EventType,
    GatewayRecord,
    GenerationRecord,
    Heartbeat,
    JobRecord,
    JobRegistration,
    JobState,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
)
from coord_control.storage.record import (
    Record,
    to_json,
)

__all__ = [
    "ACTIVE_JOB_STATES",
    "ENDED_TO_RESTART",
    "FINISHED_COMMAND_STATES",
    "AgentMetrics",
    "AuditRecord",
    "Change",
    "CheckpointCount",
    "CheckpointKind",
    "CheckpointRecord",
    "CheckpointState",
    "CheckpointSummary",
    "CommandCount",
    "CommandError",
    "CommandKind",
    "CommandRecord",
    "CommandRequest",
    "CommandState",
    "EventType",
    "Fleet",
    "FleetCounts",
    "GatewayRecord",
    "GenerationRecord",
    "Heartbeat",
    "JobOverview",
    "JobRecord",
    "JobRegistration",
    "JobState",
    "LagTrend",
    "LiveOperator",
    "LiveQuery",
    "LiveStatus",
    "OperatorCheckpoint",
    "OperatorRecord",
    "OperatorSample",
    "Outcome",
    "Percentiles",
    "QueryCheckpoint",
    "QueryRecord",
    "QuerySample",
    "ReasonCount",
    "Record",
    "RecoveryRecord",
    "SavepointRecord",
    "SubtaskRecord",
    "to_json",
]
