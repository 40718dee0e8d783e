"""The job's storage on any scheme, through the file manager that Spark writes its own checkpoints with.

A create has exactly one winner, whatever the file system: ``hadoop_creates`` says how each does it, and where none can,
the create is refused. Object stores show an object when it is complete, so their files are written in place. All other
writes go through Spark's ``CheckpointFileManager``, which renames a temporary file.

Threads: any; every Python thread has its own connection to the JVM, and Hadoop's file systems are shared safely.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError

from coord_control.durable.files.filesystem import Checksum, FileInfo, Files, Linked, LocalFiles, join, scheme
from coord_control.durable.files.object_facts import MAX_COPY_BYTES
from coord_control.durable.files.one_by_one import OneByOne
from coord_control.errors import AlreadyExists, NoAtomicCreate, StoreUnavailable
from coord_control.spark import hadoop_creates
from coord_control.spark.hadoop_creates import Create, HadoopPlace
from coord_control.spark.s3a_objects import S3AObjects

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
_REQUESTS_AT_ONCE: Final = 8
_ABSENT: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
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

    Hadoop has no links: what is linked elsewhere is copied here, within the store where it can (S3A), else through the
    JVM.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = _jvm(spark)
        self._configuration = _configuration(spark)
        self._manager_class = _manager_class(self._jvm)
        # By scheme and authority.
        self._creates: dict[str, Create] = {}
        self._buckets: dict[str, S3AObjects] = {}

    def require_atomic_create(self, path: str) -> None:
        """Check that files can be created below a path.

        Raises:
            NoAtomicCreate: two callers could both succeed.
        """
        with _reported(path, "look at the file system of"):
            place = self._place(path)
            if place.create is Create.UNSAFE:
                raise NoAtomicCreate(path, hadoop_creates.why_unsafe(place))

    def read(self, path: str) -> bytes:
        with _reported(path, "read"):
            place = self._place(path)
            if S3AObjects.has(place):
                return self._s3a(place).read(place.path)
            with self._opened(path) as stream:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))

    def create(self, path: str, data: bytes) -> None:
        with _reported(path, "create"):
            place = self._place(path)
            if place.create is Create.UNSAFE:
                raise NoAtomicCreate(path, hadoop_creates.why_unsafe(place))
            if place.create is Create.LINK:
                _create_locally(path, place, data)
                return
            try:
                if place.create is Create.RENAME:
                    # The rename refuses an existing target, after the data was sent: look first.
                    if self.exists(path):
                        raise AlreadyExists(path)
                    self._write(path, data, overwrite=False)
                else:
                    hadoop_creates.put_new(place, data)
            except Py4JJavaError as exc:
                # A file where a folder should be raises the same exception.
                if hadoop_creates.is_refused(exc) and self.exists(path):
                    raise AlreadyExists(path) from None
                raise

    def replace(self, path: str, data: bytes) -> None:
        with _reported(path, "replace"):
            place = self._place(path)
            if place.create.is_in_place:
                hadoop_creates.put(place, lambda stream: stream.write(data))
                return
            before = self._content(path)
            self._write(path, data, overwrite=True)
            # Spark's managers take "overwrite if possible" literally: where a rename refuses an existing target, the
            # old file stays without an error. What is neither old nor ours is the content of a later writer.
            if before not in (None, data) and self._content(path) == before:
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
            place = self._place(path)
            if place.create.is_in_place:
                return self._objects_below(place)
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
                place = self._place(source)
                in_place = place.create.is_in_place
                status = place.file_system.getFileStatus(place.path)
                if self._is_copied_within(place, self._place(target)) and status.getLen() <= MAX_COPY_BYTES:
                    self._s3a(place).copy(place.path, self._path(target), status.getLen())
                else:
                    with self._opened(source) as reader:
                        copy = self._jvm.org.apache.commons.io.IOUtils.copyLarge
                        self._write_new(target, lambda writer: copy(reader, writer))
            except Py4JJavaError as exc:
                if _is(exc, _ABSENT) and not self.exists(source):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from None
                raise
            modified = status.getModificationTime()
            return Linked(status.getLen(), _seconds(modified) if in_place else modified, False)

    def link_all(
        self,
        source: str,
        target: str,
        names: Sequence[tuple[str, str]],
        summed: Collection[str] = (),
        listed: Sequence[FileInfo] | None = None,
    ) -> Sequence[Linked]:
        with _reported(target, "copy files into"):
            place = self._place(source)
            if not self._is_copied_within(place, self._place(target)):
                return super().link_all(source, target, names, summed)
            objects = self._s3a(place)
            if listed is None or any(info.etag is None for info in listed):
                # A request per thousand files, instead of one per file.
                listed = self._objects_below(place)
            infos = {info.path: info for info in listed}

            def copy(pair: tuple[str, str]) -> Linked:
                from_path, to_path = join(source, pair[0]), join(target, pair[1])
                try:
                    info = infos[pair[0]]
                    if info.size > MAX_COPY_BYTES:
                        return self.link_one(from_path, to_path)
                    crc32 = objects.copy(self._path(from_path), self._path(to_path), info.size, info.etag)
                except (KeyError, FileNotFoundError):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), from_path) from None
                return Linked(info.size, info.modified, False, crc32)

            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
                return [*threads.map(copy, names)]

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        with _reported(path, "delete files of"):
            place = self._place(path)
            if not S3AObjects.has(place):
                super().delete_all(path, names)
                return
            bulk = place.file_system.createBulkDelete(place.path)
            size = bulk.pageSize()
            for start in range(0, len(names), size):
                page = self._jvm.java.util.ArrayList()
                for name in names[start : start + size]:
                    page.add(self._path(join(path, name)))
                if failed := list(bulk.bulkDelete(page)):
                    raise StoreUnavailable(path, "delete files of", failed[0].toString())

    def checksum_one(self, path: str) -> Checksum:
        with _reported(path, "read"):
            place = self._place(path)
            if S3AObjects.has(place):
                # One request instead of two; S3A's own stream comes back after the connection has broken.
                with contextlib.suppress(Py4JJavaError), _closed(self._s3a(place).open(place.path)) as stream:
                    return self._checksum_of_stream(stream)
            with self._opened(path) as stream:
                return self._checksum_of_stream(stream)

    def _checksum_of_stream(self, stream: Any) -> Checksum:
        crc = self._jvm.java.util.zip.CRC32()
        checked = self._jvm.java.util.zip.CheckedInputStream(stream, crc)
        size = self._jvm.org.apache.commons.io.IOUtils.consume(checked)
        return Checksum(size, f"{crc.getValue():08x}")

    def _s3a(self, place: HadoopPlace) -> S3AObjects:
        if (found := self._buckets.get(place.authority)) is None:
            found = self._buckets[place.authority] = S3AObjects(self._jvm, place)
        return found

    @staticmethod
    def _is_copied_within(source: HadoopPlace, target: HadoopPlace) -> bool:
        return source.authority == target.authority and S3AObjects.has(source)

    def _objects_below(self, place: HadoopPlace) -> Sequence[FileInfo]:
        """List without a request per folder."""
        found: list[FileInfo] = []
        prefix = str(place.path.toUri().getPath()).rstrip("/") + "/"
        has_etags = S3AObjects.has(place)
        try:
            statuses = place.file_system.listFiles(place.path, True)
        except Py4JJavaError as exc:
            if _is(exc, _ABSENT):
                return []
            raise
        while statuses.hasNext():
            status = statuses.next()
            name = str(status.getPath().toUri().getPath()).removeprefix(prefix)
            if not any(part.startswith(".") for part in name.split("/")):
                etag = status.getEtag() if has_etags else None
                found.append(FileInfo(name, status.getLen(), _seconds(status.getModificationTime()), etag))
        return found

    def _statuses(self, path: str) -> Sequence[Any]:
        try:
            return list(self._manager(path).list(self._path(path)))
        except Py4JJavaError as exc:
            if _is(exc, _ABSENT):
                return []
            raise

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        with _closed(self._manager(path).open(self._path(path))) as stream:
            yield stream

    def _place(self, path: str) -> HadoopPlace:
        """Return where a path is, and how files are created there."""
        place = hadoop_creates.resolved(self._path(path), self._configuration, self._path)
        if (known := self._creates.get(place.authority)) is None:
            known = self._creates[place.authority] = hadoop_creates.create_of(place)
        return place._replace(create=known)

    def _write_new(self, path: str, fill: Callable[[Any], object]) -> None:
        place = self._place(path)
        if place.create.is_in_place:
            hadoop_creates.put(place, fill)
            return
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

    def _content(self, path: str) -> bytes | None:
        """Return what a file contains now, or None if there is none."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _manager(self, path: str) -> Any:
        return self._manager_class.create(self._path(path), self._configuration)


@contextlib.contextmanager
def _closed(stream: Any) -> Iterator[Any]:
    try:
        yield stream
    finally:
        stream.close()


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


def _seconds(milliseconds: int) -> int:
    # A single object's time comes in HTTP's seconds; listings of some servers have more.
    return milliseconds // 1000 * 1000


def _create_locally(path: str, place: HadoopPlace, data: bytes) -> None:
    try:
        LocalFiles().create(str(place.path), data)
    except AlreadyExists:
        raise AlreadyExists(path) from None


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
