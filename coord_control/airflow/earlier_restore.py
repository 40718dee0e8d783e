"""What earlier attempts at a task have restored: a request to the driver, or a restore on the storage.

Both are looked for before a new one is made, whether the job runs or not: a job whose worker was lost after it had
restored the storage may have been started in between.

Threads: the task's.
"""

from __future__ import annotations

from collections.abc import Callable

from coord_control.airflow.attempts import Attempts
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_once import newest_request
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.restore_log import RestoreRecord, find_restore
from coord_control.storage.records import CommandRecord, JobRecord

__all__ = ["earlier_restore", "storage_key"]


def earlier_restore(
    attempts: Attempts, client: ControlClient, job: JobRecord, target: str, storage: Callable[[], Files]
) -> CommandRecord | RestoreRecord | None:
    """Return what an earlier attempt has begun with the driver or done on the storage, without reporting it.

    Args:
        target: the job that is restored: the new one of a fork.
        storage: gives that of the job; called only if an earlier attempt may have restored there.

    Raises:
        StoreError, AirflowException: the storage cannot be read, so it is not known.
    """
    asked = newest_request(client, job.name, attempts.key())
    if asked is not None and asked.stands and asked.id not in attempts.reported:
        return asked
    if not attempts.were_on_storage:
        return None
    return find_restore(storage(), join(job.root, target), storage_key(attempts))


def storage_key(attempts: Attempts) -> str:
    """Return the key of a restore on the storage: the same for all attempts until one has reported it."""
    number = 1
    while (key := f"{attempts.key()}@{number}") in attempts.reported:
        number += 1
    return key
