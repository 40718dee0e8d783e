"""Every error of the package, in one tree; its fields name whose fault it is and whether a retry can help.

- CoordControlError
    - InvalidTransition              a machine was given an input that its state does not allow (a bug, nothing changed)
    - DeclarationError               the job is declared in a way that cannot work
        - InvalidName, NotStreaming, DuplicateOperator, OperatorReused, OperatorUnused, UnsupportedOption, InvalidModel
        - OperatorsChanged, ParallelismChanged, ParallelismFixed, WakeChanged, EventTypesChanged, LineageMismatch
        - AssetKeyTaken, NoAtomicCreate, SparkTooOld, SparkConnectUnsupported, ScratchFolderMissing, NonRestoredState,
          RestoredQueryUnused, AnotherJobChecked
        - RestoreRefused, ForkNameTaken, RescaleFailed, PartitioningMissing
        - PlanRefused, QueryNotStarted, QueryNotRestored, NotACheckpoint, CheckpointLocationConflict,
          AdoptedQueryRunning, RestoreNotUndone
        - LiveModelInvalid
    - LiveValueInvalid, LiveValueNotFound, LiveVersionChanged     a live value cannot be changed like this
    - LiveValuesRefused              an epoch that is over asked for live values
    - JobNotFound                    there is no job of this name
    - UserDataError                  a value that user code produced cannot be used
        - UndeclaredEvent, EventTooLarge, StateTooLarge, EventInvalid, StateInvalid, NoSuchSubtask, SubtaskMixed,
          SubtaskNotAllowed, ChannelFull, CoordinatorNotStarted, OutputInvalid
        - UndeclaredRequest, RequestNotValid, RequestFailed, EffectOfRequest, StateNotPutBack
    - NotAnswered                    a request to an operator has no answer now; another try may help
    - SubtaskFailed                  a subtask's function failed, and a retry would not help
    - OutputNotConsumed              Spark committed an epoch without reading all output of a subtask
    - CoordinatorFailed, CoordinatorTimeout
    - Fenced                         a newer driver owns the job
    - CommittedElsewhere             another process committed an epoch of this driver
    - EpochNotRun                    a sink skipped an epoch without running it, which a query with state needs
    - CommitUnknown                  Spark was interrupted during a commit
    - JobRunning                     the job must not have a driver, but has one or may have one
    - OlderDriverAlive               sinks are to go back, but a driver that was replaced has not ended
    - AttemptRefused                 the driver refused this execution of a subtask
    - StoreError
        - DamagedRecord, MissingRecord, StateFileMissing, UnsupportedFormat, AlreadyExists, StoreUnavailable
        - CheckpointNotFound, CheckpointInUse, SavepointTargetTaken, LabelTaken, NothingToSave,
          MailboxNotFound, NotInCheckpoint, StateNotLoaded
    - EndpointError
        - EndpointUnreachable, EndpointTimeout, EndpointClosed, EndpointNotBound, AuthenticationFailed, FrameInvalid
    - JavaMissing                    Spark cannot start on this machine
    - SparkLost                      the driver's JVM, or its Spark context, is gone
    - SupervisorLost                 coordctl run was killed, so its driver has stopped the job
    - QueryFailed                    a query ended for good; the cause is chained
    - CheckpointNotCompleted         a requested checkpoint or savepoint did not complete
    - TooManyFailedCheckpoints       more checkpoints in a row failed than the job's options allow
    - JobClosed                      the job was used after it ended
        - JobEndRequested            ... because its end was requested: ends the program without an error
    - ControlSettingsInvalid, NoControlPlane, RequestInvalid, OperatorNotFound    the request is invalid, not sent
    - MetricsAddressInvalid          the metrics address is invalid
    - CommandFailed                  a command did not succeed
        - CommandExpired, CommandCancelled
        - CommandRefused
            - ControlEventRefused
    - CommandTimeout                 a command was still running when the wait timed out
    - ControlError                   requests to a job through the control database
        - CommandNotFound, RecordNotFound, KeyReused, CommandNotCancellable, JobNotRunning, JobStillAlive
        - GenerationSuperseded, JobNameTaken
        - LaunchFailed               a program cannot be started
        - NotPromotable              the fork cannot take the place of its parent, or not yet
        - NotUpgradable              the job cannot be upgraded from here, or is being upgraded
        - JobRootMismatch            the job's folder is new, but its name has a history
    - JobStopRequested               the job was stopped while its last driver crashed: it does not start
    - DatabaseError                  the control database itself
        - DatabaseUnavailable        for now; try again later
            - DatabaseBusy, DatabaseFull
        - DatabaseReadOnly, DatabaseForbidden, DatabaseDamaged, DatabaseNotFound
        - DatabaseUrlInvalid, DatabaseDriverMissing, SchemaMismatch, RecordRefused
    - PackageMissing                             an extra of the package is not installed
    - PageSettingsInvalid                        coordctl ui cannot serve its page
"""

from coord_control.errors import base, client, control, live, restores, states, system, user
from coord_control.errors.base import *
from coord_control.errors.client import *
from coord_control.errors.control import *
from coord_control.errors.live import *
from coord_control.errors.restores import *
from coord_control.errors.states import *
from coord_control.errors.system import *
from coord_control.errors.user import *

__all__ = []
__all__ += base.__all__
__all__ += client.__all__
__all__ += control.__all__
__all__ += live.__all__
__all__ += restores.__all__
__all__ += states.__all__
__all__ += system.__all__
__all__ += user.__all__
