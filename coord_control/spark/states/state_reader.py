"""``cc.StateReader``: looks inside a checkpoint or savepoint, without the program and without changing anything.

Spark's data source reads a Spark checkpoint directory, which neither a savepoint nor a retained checkpoint is. So the
files of a query are put into a temporary one first: links where the storage has them, copies elsewhere. A DataFrame is
lazy and can outlive its reader, so this directory stays until the reader is closed, or else until the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import SparkSession

from coord_control.control.client.control_client import ControlClient
from coord_control.coordinators.requests import StatesPage
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.state_lookup import SparkState, find_spark_operator, find_state, operator_states
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.restore.export import export_query
from coord_control.errors import CheckpointNotFound, ScratchFolderMissing, StoreError
from coord_control.ids import QueryName
from coord_control.spark.hadoop_files import absolute, files_for
from coord_control.spark.session import is_local
from coord_control.spark.states.state_comparison import compare_states
from coord_control.spark.states.state_source import load_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StateReader"]

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_PREFIX: Final = "coord-state-"
_PURPOSE: Final = "its states are being read"


class StateReader:
    """Reads the states in one checkpoint or savepoint; it changes nothing there.

    Close it, or use it in a ``with`` block, when the DataFrames are no longer needed: that removes the temporary files
    that they read. The end of the process does so too. Use it from one thread at a time.

    Args:
        ref: an id, a label, ``latest``, or the path of a checkpoint or savepoint, wherever it was moved.
        spark: a classic session. It is needed for Spark's states, and for storages that only Spark reaches. Default:
            the active session.
        job: the job; needed unless ``ref`` is a path.
        root: the folder of all jobs. Default: what the control database knows of the job.
        control: the address of the control database; default: the user's own.
        scratch: a folder for temporary files. Driver and executors must reach it; on the file system of the savepoint
            they take no space. Default: the temporary folder of this machine, with local Spark.

    Attributes:
        path: the folder of the checkpoint or savepoint.

    Raises:
        CheckpointNotFound: there is no such checkpoint; the message names similar ones.
        JobNotFound, NoControlPlane: the root of the job is not known.
        DamagedRecord, UnsupportedFormat: what the checkpoint says about itself cannot be used.
    """

    def __init__(
        self,
        ref: str,
        spark: SparkSession | None = None,
        *,
        job: str | None = None,
        root: str | None = None,
        control: str | None = None,
        scratch: str | None = None,
    ) -> None:
        self._spark = spark
        self._scratch = scratch
        self._folders: dict[QueryName, str] = {}
        self.path: Final = _resolved(ref, job, root, control, self._files)
        with open_checkpoint(self._files(self.path), self.path, _PURPOSE) as source:
            self._metadata: Final = source.metadata

    def read(
        self,
        query: str,
        operator: int | str | None = None,
        state: str | None = None,
        *,
        options: Mapping[str, str] = _NO_OPTIONS,
    ) -> DataFrame:
        """Return a state of Spark as it was at the boundary: a DataFrame of ``key``, ``value`` and ``partition_id``.

        Lists and maps of ``transformWithState`` have a row per element, with ``list_element``, or ``user_map_key`` and
        ``user_map_value``, instead of ``value``. What Spark finds wrong with a file is raised when the frame is used.

        Args:
            operator: the id of a stateful operator of Spark, or its name, such as ``dedupe``. Default: the only one.
            state: ``left`` or ``right`` of a join, or a variable of ``transformWithState``. Default: the only one.
            options: more options of Spark's data source ``statestore``, such as ``readRegisteredTimers``. Without
                ``state`` they alone select what is read.

        Raises:
            NotInCheckpoint: there is no such query, operator or state, or several; the message names what there is.
            ScratchFolderMissing: executors on other machines need a ``scratch`` folder.
            SparkTooOld: this is older than Spark 4.0.
            DamagedRecord, MissingRecord: a file of the checkpoint is missing, or not what its manifest says.
        """
        return self._load(self._find(query, operator, state, options))

    def operator_states(self, uid: str) -> StatesPage:
        """Return the states of an operator of the job, all subtasks on one page; it needs no Spark.

        The state of a subtask is None, with ``size`` 0, if it still has the default of its model: only the program
        knows that.

        Raises:
            NotInCheckpoint: there is no such operator; the message names what there is.
        """
        return operator_states(self._metadata, uid)

    def compare(
        self,
        other: StateReader,
        query: str,
        operator: int | str | None = None,
        state: str | None = None,
        *,
        options: Mapping[str, str] = _NO_OPTIONS,
    ) -> DataFrame:
        """Return how ``other`` differs from this one in a state of Spark: a row per key that is not the same.

        Args:
            operator, state, options: as in :meth:`read`, for both.

        Returns:
            ``change`` (``added``: only in ``other``, ``removed``, ``changed``), ``key``, ``partition_id``, and the
            values ``before`` (here) and ``after`` (in ``other``). Where a key has several rows (sides of joins, lists)
            these are arrays, sorted.

        Raises:
            As :meth:`read`.
        """
        found = self._find(query, operator, state, options)
        before = self._load(found)
        after = other.read(query, found.operator.id, state, options=options)
        has_lists = found.is_of_join or "list_element" in before.columns
        return compare_states(before, after, has_lists=has_lists)

    def close(self) -> None:
        """Remove the temporary files; DataFrames that have read them cannot be used any more."""
        atexit.unregister(self.close)
        while self._folders:
            _, folder = self._folders.popitem()
            with contextlib.suppress(StoreError):
                self._files(folder).delete(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find(
        self, query: str, operator: int | str | None, state: str | None, options: Mapping[str, str]
    ) -> SparkState:
        found = find_spark_operator(self._metadata, query, operator)
        return find_state(self._metadata, query, found, state, options)

    def _load(self, state: SparkState) -> DataFrame:
        spark = self._session()
        return load_state(spark, state, join(self._folder(state.query), "spark"))

    def _folder(self, query: QueryName) -> str:
        """Return a folder with a Spark checkpoint directory of a query in ``spark``."""
        folder = self._folders.get(query)
        if folder is None:
            folder = self._new_folder()
            files = self._files(folder)
            try:
                with open_checkpoint(self._files(self.path), self.path, _PURPOSE) as source:
                    export_query(files, source, query, join(folder, "spark"), new_id=True)
            except BaseException:
                files.delete(folder)
                raise
            atexit.register(self.close)
            self._folders[query] = folder
        return folder

    def _new_folder(self) -> str:
        if self._scratch is not None:
            return join(absolute(self._scratch), f"{_PREFIX}{uuid.uuid4().hex}")
        master = str(self._session().sparkContext.master)
        if not is_local(master):
            raise ScratchFolderMissing(master)
        return tempfile.mkdtemp(prefix=_PREFIX)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = SparkSession.active()
        return self._spark

    def _files(self, path: str) -> Files:
        if self._spark is None and (found := without_spark(path)) is not None:
            return found
        return files_for(path, self._session())


def _resolved(ref: str, job: str | None, root: str | None, control: str | None, files: Callable[[str], Files]) -> str:
    """Return the folder of the checkpoint that is meant."""
    if "/" in ref:
        ref = absolute(ref)
    if job is None:
        if "/" not in ref:
            raise CheckpointNotFound(ref, "an id or a label belongs to a job, and none was named (job=...)")
        return Catalog.of_paths(ref, files).resolve(ref).path
    if root is None:
        with ControlClient(control) as client:
            root = client.job(job).root
    base = absolute(root)
    return Catalog(files(base), join(base, job), files).resolve(ref).path
