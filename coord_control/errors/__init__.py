"""Every error of the package, in one tree: each says whose fault it is and whether trying again can help, in fields.

- CoordControlError
    - InvalidTransition              a machine was given an input that its state does not allow (a bug, nothing changed)
    - DeclarationError               the job is declared in a way that cannot work
        - InvalidName, NotStreaming, DuplicateOperator, OperatorReused, OperatorUnused, UnsupportedOption, InvalidModel
        - OperatorsChanged, ParallelismChanged, ParallelismFixed, EventTypesChanged, LineageMismatch, AssetKeyTaken
        - NonRestoredState, RestoredQueryUnused, RestoreRefused, ForkNameTaken, RescaleFailed, PlanRefused
        - QueryNotStarted, QueryNotRestored, NotACheckpoint, CheckpointLocationConflict, AdoptedQueryRunning,
          RestoreNotUndone
    - JobNotFound                    a command names a job that is not there
    - UserDataError                  a value that user code produced cannot be used
        - UndeclaredEvent, EventTooLarge, StateTooLarge, EventInvalid, StateInvalid, NoSuchSubtask, SubtaskMixed,
          SubtaskNotAllowed, ChannelFull, CoordinatorNotStarted
    - SubtaskFailed                  a subtask's function failed in a way that no retry repairs
    - OutputNotConsumed              Spark committed an epoch although a subtask's output was not read to its end
    - CoordinatorFailed, CoordinatorTimeout
    - Fenced                         a newer driver owns the job
    - CommittedElsewhere             something else has committed an epoch that this driver runs
    - CommitUnknown                  Spark was interrupted while it committed an epoch
    - JobRunning                     a job has a driver, or may have, and must not
    - AttemptRefused                 the driver refused this execution of a subtask
    - StoreError
        - DamagedRecord, MissingRecord, StateFileMissing, UnsupportedFormat, AlreadyExists, StoreUnavailable
        - CheckpointNotFound, CheckpointInUse, SavepointTargetTaken, LabelTaken, NothingToSave,
          MailboxNotFound
    - EndpointError
        - EndpointUnreachable, EndpointTimeout, EndpointClosed, EndpointNotBound, AuthenticationFailed, FrameInvalid
    - JavaMissing                    Spark cannot start on this machine
    - SparkLost                      the driver's JVM, or its Spark context, is gone
    - SupervisorLost                 coordctl run was killed, so its driver has stopped the job
    - QueryFailed                    a query ended for good; the cause is chained
    - CheckpointNotCompleted         a checkpoint or savepoint that was asked for does not exist
    - TooManyFailedCheckpoints       more checkpoints in a row failed than the job's options allow
    - JobClosed                      the job was used after it ended
        - JobEndRequested            ... because its end was requested: ends the program without an error
    - ControlSettingsInvalid, NoControlPlane, RequestInvalid, OperatorNotFound    a request that was not even sent
    - MetricsAddressInvalid          metrics cannot be served at this address
    - CommandFailed                  what was asked of a driver was not done
        - CommandExpired, CommandCancelled
        - CommandRefused
            - ControlEventRefused
    - CommandTimeout                 it was not done yet when the one who waited gave up
    - ControlError                   something that is asked of a job through the control database
        - CommandNotFound, RecordNotFound, KeyReused, CommandNotCancellable, JobNotRunning, JobStillAlive
        - GenerationSuperseded, JobNameTaken
    - JobStopRequested               a stop that the last driver did not survive: the job ends before it begins
    - DatabaseError                  the control database itself
        - DatabaseUnavailable        for now; try again later
            - DatabaseBusy, DatabaseFull
        - DatabaseReadOnly, DatabaseForbidden, DatabaseDamaged, DatabaseNotFound
        - DatabaseUrlInvalid, DatabaseDriverMissing, SchemaMismatch, RecordRefused
    - PagePackageMissing, PageSettingsInvalid    coordctl ui cannot serve its page
"""

from coord_control.errors import base, client, control, restores, system, user
from coord_control.errors.base import *
from coord_control.errors.client import *
from coord_control.errors.control import *
from coord_control.errors.restores import *
from coord_control.errors.system import *
from coord_control.errors.user import *

__all__ = []
__all__ += base.__all__
__all__ += client.__all__
__all__ += control.__all__
__all__ += restores.__all__
__all__ += system.__all__
__all__ += user.__all__
