"""Where a job lies, and on which storage each path is.

Threads: any.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.files.filesystem import Files, LocalFiles, join, scheme
from coord_control.errors import DeclarationError
from coord_control.spark.hadoop_files import HadoopFiles, absolute, files_for

__all__ = ["JobPlace"]


class JobPlace:
    """The place of one job.

    Raises:
        NoAtomicCreate: two drivers could both own a job on the root's storage.

    Attributes:
        root: the folder of all jobs.
        folder: of the job, below ``root``.
        files: the storage of both.
    """

    def __init__(self, name: str, root: str, spark: SparkSession) -> None:
        self.name = name
        self.root = root
        self.folder = join(root, name)
        self.files: Files = files_for(root, spark)
        if isinstance(self.files, HadoopFiles):
            self.files.require_atomic_create(self.folder)
        self._spark = spark
        self._storages: dict[str | None, Files] = {}  # by scheme; None for Spark's default

    def storage(self, path: str) -> Files:
        """Return the storage that a path is on."""
        # Asked several times by each checkpoint, and the JVM takes milliseconds to say what its default is.
        if (found := self._storages.get(scheme(path))) is None:
            files = files_for(path, self._spark)
            # What can be the same object is: files are linked within one, and copied between two.
            found = self._storages[scheme(path)] = self.files if type(files) is type(self.files) else files
        return found

    def reachable(self, location: str) -> str:
        """Return an absolute path on the job's own storage.

        Raises:
            DeclarationError: it is on another one.
        """
        location = absolute(location)
        if isinstance(self.files, LocalFiles) and not isinstance(files_for(location, self._spark), LocalFiles):
            raise DeclarationError(
                f"checkpoint_location {location} is on another storage than the job's root {self.folder}; "
                "choose a root on the storage of the checkpoint"
            )
        return location

    def catalog(self) -> Catalog:
        """Return the job's checkpoints and savepoints, as its storage has them."""
        return Catalog(self.files, self.folder, self.storage)
