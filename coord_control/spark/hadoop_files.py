"""The job's storage on any scheme, through the file manager that Spark writes its own checkpoints with.

Spark's ``CheckpointFileManager`` knows how to create a file atomically on each of its file systems: by a rename that
refuses an existing target (HDFS and its like), or with the class that
``spark.sql.streaming.checkpointFileManagerClass`` names (object stores). Taking the same one means that the epoch store
is exactly as safe as Spark's offset log next to it. On a local disk Hadoop's rename checks before it renames, so two
drivers may both win: there ``LocalFiles`` is taken.

Threads: any; every Python thread has its own connection to the JVM, and Hadoop's file systems are shared safely.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError

from coord_control.durable.files.filesystem import Checksum, FileInfo, Files, Linked, LocalFiles, join, scheme
from coord_control.durable.files.one_by_one import OneByOne
from coord_control.errors import AlreadyExists, StoreUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HadoopFiles", "absolute", "files_for"]

#: Where Spark keeps the class: since 4.1, and before.
_MANAGER_PACKAGES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing",
    "org.apache.spark.sql.execution.streaming",
)
#: Each piece is a call of the JVM.
_CHUNK_BYTES: Final = 1 << 20
_ABSENT: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
_EXISTS: Final = ("org.apache.hadoop.fs.FileAlreadyExistsException", "java.nio.file.FileAlreadyExistsException")
_NOT_REPLACED: Final = (
    "the old file is still there; if the file system cannot rename over a file, name a manager that replaces files in "
    "spark.sql.streaming.checkpointFileManagerClass"
)


def files_for(root: str, spark: SparkSession) -> Files:
    """Choose the implementation for a job's root.

    Args:
        root: where the job's files lie; a URI, or a path in Spark's default file system.
        spark: a classic session.

    Returns:
        Local files for ``file:`` and for absolute paths when the default file system is local; else Spark's own.
    """
    found = scheme(root) or (_default_scheme(spark) if root.startswith("/") else None)
    return LocalFiles() if found == "file" else HadoopFiles(spark)


def absolute(path: str) -> str:
    """Return a path that means the same in every process: a local one is relative to the driver's folder."""
    return path if ":" in path else os.path.abspath(path)


def _default_scheme(spark: SparkSession) -> str:
    """Return the scheme of Spark's default file system: ``file``, ``hdfs``, ..."""
    jvm, configuration = _jvm(spark), _configuration(spark)
    return str(jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(configuration).getScheme())


class HadoopFiles(OneByOne):
    """Files of a scheme that Spark can write; the contract is :class:`coord_control.durable.files.filesystem.Files`.

    Hadoop has no links: what is linked elsewhere is copied here, within the JVM.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = _jvm(spark)
        self._configuration = _configuration(spark)
        self._manager_class = _manager_class(self._jvm)

    def read(self, path: str) -> bytes:
        with _reported(path, "read"):
            with self._opened(path) as stream:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))

    def create(self, path: str, data: bytes) -> None:
        with _reported(path, "create"):
            # Hadoop finds an existing target when it renames, after the data was sent: look first.
            if self.exists(path):
                raise AlreadyExists(path)
            try:
                self._write(path, data, overwrite=False)
            except Py4JJavaError as exc:
                # A file where a folder should be raises the same exception.
                if _is(exc, _EXISTS) and self.exists(path):
                    raise AlreadyExists(path) from None
                raise

    def replace(self, path: str, data: bytes) -> None:
        with _reported(path, "replace"):
            self._write(path, data, overwrite=True)
            # Spark's managers take "overwrite if possible" literally: where a rename refuses an existing target, the
            # old file stays without an error.
            if self.read(path) != data:
                raise StoreUnavailable(path, "replace", _NOT_REPLACED)

    def exists(self, path: str) -> bool:
        with _reported(path, "look for"):
            return bool(self._manager(path).exists(self._path(path)))

    def list(self, path: str) -> list[str]:
        with _reported(path, "list"):
            names = [str(status.getPath().getName()) for status in self._statuses(path)]
            return sorted(name for name in names if not name.startswith("."))

    def delete(self, path: str) -> None:
        with _reported(path, "delete"):
            self._manager(path).delete(self._path(path))

    def make_dirs(self, path: str) -> None:
        with _reported(path, "make the folder"):
            self._manager(path).mkdirs(self._path(path))

    def walk(self, path: str) -> Sequence[FileInfo]:
        with _reported(path, "list"):
            found: list[FileInfo] = []
            below = [""]
            while below:
                prefix = below.pop()
                for status in self._statuses(join(path, prefix) if prefix else path):
                    name = str(status.getPath().getName())
                    if name.startswith("."):
                        continue
                    if status.isDirectory():
                        below.append(f"{prefix}{name}/")
                    else:
                        found.append(FileInfo(prefix + name, status.getLen(), status.getModificationTime()))
            return found

    def chunks(self, path: str) -> Iterator[bytes]:
        with _reported(path, "read"), self._opened(path) as stream:
            while chunk := bytes(stream.readNBytes(_CHUNK_BYTES)):
                yield chunk

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        def write(stream: Any) -> None:
            for chunk in chunks:
                stream.write(chunk)

        with _reported(path, "replace"):
            self._write_new(path, write)

    def link_one(self, source: str, target: str) -> Linked:
        with _reported(target, "copy"):
            try:
                status = self._path(source).getFileSystem(self._configuration).getFileStatus(self._path(source))
                with self._opened(source) as reader:
                    copy = self._jvm.org.apache.commons.io.IOUtils.copyLarge
                    self._write_new(target, lambda writer: copy(reader, writer))
            except Py4JJavaError as exc:
                if _is(exc, _ABSENT) and not self.exists(source):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from None
                raise
            return Linked(status.getLen(), status.getModificationTime(), False)

    def checksum_one(self, path: str) -> Checksum:
        with _reported(path, "read"), self._opened(path) as stream:
            crc = self._jvm.java.util.zip.CRC32()
            checked = self._jvm.java.util.zip.CheckedInputStream(stream, crc)
            size = self._jvm.org.apache.commons.io.IOUtils.consume(checked)
            return Checksum(size, f"{crc.getValue():08x}")

    def _statuses(self, path: str) -> Sequence[Any]:
        try:
            return list(self._manager(path).list(self._path(path)))
        except Py4JJavaError as exc:
            if _is(exc, _ABSENT):
                return []
            raise

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        stream = self._manager(path).open(self._path(path))
        try:
            yield stream
        finally:
            stream.close()

    def _write_new(self, path: str, fill: Callable[[Any], object]) -> None:
        # Not every manager can put a file over another one.
        if self.exists(path):
            self.delete(path)
        self._fill(path, fill, overwrite=False)

    def _write(self, path: str, data: bytes, *, overwrite: bool) -> None:
        self._fill(path, lambda stream: stream.write(data), overwrite=overwrite)

    def _fill(self, path: str, fill: Callable[[Any], object], *, overwrite: bool) -> None:
        target = self._path(path)
        manager = self._manager(path)
        manager.mkdirs(target.getParent())
        stream = manager.createAtomic(target, overwrite)
        try:
            fill(stream)
            if stream.hasCapability("hsync"):
                stream.hsync()
            stream.close()
        except BaseException:
            # Also removes the temporary file; the error that led here is the one to report.
            with contextlib.suppress(Py4JError):
                stream.cancel()
            raise

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _manager(self, path: str) -> Any:
        return self._manager_class.create(self._path(path), self._configuration)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _configuration(spark: SparkSession) -> Any:
    """Hadoop's configuration with the session's settings in it: they can name the file manager's class."""
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


def _manager_class(jvm: Any) -> Any:
    for package in _MANAGER_PACKAGES:
        found = jvm
        for name in (*package.split("."), "CheckpointFileManager"):
            found = getattr(found, name)
        if isinstance(found, JavaClass):
            return found
    raise AssertionError("Spark has its CheckpointFileManager elsewhere: please report the Spark version")


@contextlib.contextmanager
def _reported(path: str, action: str) -> Iterator[None]:
    """Translate errors of the JVM into ours; the only place that does."""
    try:
        yield
    except Py4JJavaError as exc:
        if action == "read" and _is(exc, _ABSENT):
            raise FileNotFoundError(f"{path} does not exist") from None
        raise StoreUnavailable(path, action, exc.java_exception.toString()) from exc
    except Py4JError as exc:
        raise StoreUnavailable(path, action, exc) from exc


def _is(error: Py4JJavaError, classes: tuple[str, ...]) -> bool:
    return error.java_exception.getClass().getName() in classes
