"""The job's storage on S3, Azure and Google Cloud without Spark: for the command line and for Dagster.

The rooms of an object store are prefixes of names. A folder exists while an object lies below it; an empty one that
was made holds a hidden marker. What Hadoop's connectors write is read here, and the other way round.

The addresses are those that Spark uses (``s3a://``, ``abfss://``, ``gs://``); credentials, region and endpoint come
from the environment variables of the cloud's own tools, or from the machine's or the pod's identity.

Threads: any; requests for many objects are sent by several threads at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from coord_control.durable.files.filesystem import Checksum, FileInfo, Linked, join
from coord_control.durable.files.object_facts import ATTEMPT, MAX_COPY_BYTES
from coord_control.durable.files.one_by_one import OneByOne
from coord_control.durable.files.passed_on import PassedOn, guarded
from coord_control.errors import AlreadyExists, StoreUnavailable

if TYPE_CHECKING:
    from obstore import ObjectMeta

__all__ = ["ObjectFiles"]

_CHUNK_BYTES: Final = 1 << 20
_REQUESTS_AT_ONCE: Final = 16
#: Of so many files or fewer of a folder the sizes are asked one by one; for more the folder is listed.
_FEW: Final = 3
_MARKER: Final = ".folder"
#: Environment variables that name a server other than the cloud's.
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")

_A = TypeVar("_A")
_R = TypeVar("_R")


class ObjectFiles(OneByOne):
    """Objects by URI; the contract is :class:`coord_control.durable.files.filesystem.Files`.

    There are no links: what is linked elsewhere is copied here, within the store when both names are in one bucket.

    Args:
        open_store: opens a bucket or a container by its address.
    """

    def __init__(self, open_store: Callable[[str], ObjectStore] | None = None) -> None:
        self._open_store = open_store or _from_environment
        self._stores: dict[str, ObjectStore] = {}

    def read(self, path: str) -> bytes:
        with _reported(path, "read"):
            store, key = self._at(path)
            return bytes(obstore.get(store, key).bytes())

    def create(self, path: str, data: bytes) -> None:
        with _reported(path, "create"):
            store, key = self._at(path)
            attempt = uuid.uuid4().hex
            try:
                obstore.put(store, key, data, mode="create", use_multipart=False, attributes={ATTEMPT: attempt})
            except AlreadyExistsError:
                if _attempt_of(store, key) != attempt:
                    raise AlreadyExists(path) from None

    def replace(self, path: str, data: bytes) -> None:
        with _reported(path, "replace"):
            store, key = self._at(path)
            obstore.put(store, key, data, use_multipart=False)

    def exists(self, path: str) -> bool:
        with _reported(path, "look for"):
            store, key = self._at(path)
            return _head(store, key) is not None or any(obstore.list(store, f"{key}/", chunk_size=1))

    def list(self, path: str) -> list[str]:
        with _reported(path, "list"):
            store, key = self._at(path)
            found = obstore.list_with_delimiter(store, f"{key}/")
            paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"] if each["path"] != key)]
            names = {each.rstrip("/").rpartition("/")[2] for each in paths}
            return sorted(name for name in names if not name.startswith("."))

    def delete(self, path: str) -> None:
        with _reported(path, "delete"):
            store, key = self._at(path)
            keys = [key]
            for chunk in obstore.list(store, f"{key}/", chunk_size=1000):
                keys += [each["path"] for each in chunk]
            _delete(store, keys)

    def make_dirs(self, path: str) -> None:
        with _reported(path, "make the folder"):
            store, key = self._at(path)
            obstore.put(store, f"{key}/{_MARKER}", b"", use_multipart=False)

    def walk(self, path: str) -> Sequence[FileInfo]:
        with _reported(path, "list"):
            store, key = self._at(path)
            found = []
            for chunk in obstore.list(store, f"{key}/", chunk_size=1000):
                for each in chunk:
                    name = each["path"].removeprefix(f"{key}/")
                    if each["path"] == key or any(part.startswith(".") for part in name.split("/")):
                        continue
                    found.append(FileInfo(name, each["size"], _modified(each), each["e_tag"]))
            empty = [info.path for info in found if info.size == 0]
            # Hadoop marks a folder by an empty object whose name ends in a slash, which a listing here leaves out.
            heads = _at_once(lambda name: _head(store, f"{key}/{name}"), empty)
            folders = {name for name, head in zip(empty, heads, strict=True) if head is None}
            return [info for info in found if info.path not in folders]

    def chunks(self, path: str) -> Iterator[bytes]:
        with _reported(path, "read"):
            yield from _pieces(*self._at(path))

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        with _reported(path, "replace"):
            store, key = self._at(path)
            _put_all(store, key, chunks)

    def link_one(self, source: str, target: str) -> Linked:
        from_folder, _, from_name = source.rpartition("/")
        to_folder, _, to_name = target.rpartition("/")
        return self.link_all(from_folder, to_folder, [(from_name, to_name)])[0]

    def link_all(
        self,
        source: str,
        target: str,
        names: Sequence[tuple[str, str]],
        summed: Collection[str] = (),
        listed: Sequence[FileInfo] | None = None,
    ) -> Sequence[Linked]:
        with _reported(target, "copy files into"):
            if len(names) > _FEW:
                infos = {info.path: info for info in self.walk(source)}
            else:
                infos = {name: info for name, _ in names if (info := self._info(source, name)) is not None}
            for name, _ in names:
                if name not in infos:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), join(source, name))

            def copy(pair: tuple[str, str]) -> Linked:
                info = infos[pair[0]]
                self._copy(join(source, pair[0]), join(target, pair[1]), info.size)
                return Linked(info.size, info.modified, False)

            return _at_once(copy, names)

    def checksum_all(self, path: str, names: Sequence[str]) -> Sequence[Checksum | None]:
        return _at_once(lambda name: self._checksum_of(join(path, name)), names)

    def delete_all(self, path: str, names: Sequence[str]) -> None:
        with _reported(path, "delete files of"):
            store, key = self._at(path)
            _delete(store, [f"{key}/{name}" for name in names])

    def _info(self, folder: str, name: str) -> FileInfo | None:
        head = _head(*self._at(join(folder, name)))
        return None if head is None else FileInfo(name, head["size"], _modified(head), head["e_tag"])

    def _copy(self, source: str, target: str, size: int) -> None:
        from_store, from_key = self._at(source)
        to_store, to_key = self._at(target)
        try:
            if from_store is to_store and size <= MAX_COPY_BYTES:
                obstore.copy(from_store, from_key, to_key)
            else:
                _put_all(to_store, to_key, self.chunks(source))
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from None

    def _at(self, path: str) -> tuple[ObjectStore, str]:
        parts = urlsplit(path, allow_fragments=False)
        if not parts.scheme:
            raise OSError(
                "this is a local path and not the URI of an object store: was the folder copied from another machine?"
            )
        bucket = f"{parts.scheme}://{parts.netloc}"
        if (store := self._stores.get(bucket)) is None:
            store = self._stores[bucket] = self._open_store(bucket)
        return store, path[len(bucket) :].strip("/")


def _at_once(action: Callable[[_A], _R], items: Sequence[_A]) -> list[_R]:
    if len(items) < 2:
        return [action(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _REQUESTS_AT_ONCE)) as threads:
        return [*threads.map(action, items)]


def _from_environment(bucket: str) -> ObjectStore:
    # A server on this machine or in this network may have no certificate; the SDKs then connect without one.
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    return from_url(bucket, client_options={"allow_http": is_plain})


def _head(store: ObjectStore, key: str) -> ObjectMeta | None:
    try:
        return obstore.head(store, key)
    except FileNotFoundError:
        return None


def _attempt_of(store: ObjectStore, key: str) -> str | None:
    try:
        return obstore.get(store, key, options={"head": True}).attributes.get(ATTEMPT)
    except FileNotFoundError:
        return None


def _modified(meta: ObjectMeta) -> int:
    # Milliseconds, as Hadoop has them, so that both see the same tag. A single object's time comes in HTTP's seconds;
    # listings of some servers have more.
    return int(meta["last_modified"].timestamp()) * 1000


def _pieces(store: ObjectStore, key: str) -> Iterator[bytes]:
    for chunk in obstore.get(store, key).stream(min_chunk_size=_CHUNK_BYTES):
        yield bytes(chunk)


def _put_all(store: ObjectStore, key: str, chunks: Iterable[bytes]) -> None:
    writer = obstore.open_writer(store, key)
    for chunk in guarded(chunks):
        writer.write(chunk)
    # Without this the object does not appear: after an error there is nothing but parts, which the bucket's rule for
    # incomplete uploads removes.
    writer.close()


def _delete(store: ObjectStore, keys: Sequence[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        obstore.delete(store, keys)
        return
    # Some stores stop at an object that is gone.
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(store, key)


@contextlib.contextmanager
def _reported(path: str, action: str) -> Iterator[None]:
    """Translate errors of the store into ours; the only place that does."""
    try:
        yield
    except PassedOn as other:
        raise other.error from None
    except FileNotFoundError as error:
        if error.filename:
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except (BaseError, OSError) as error:
        raise StoreUnavailable(path, action, error) from error
