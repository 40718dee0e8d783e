"""What Hadoop's file systems have no verb for and S3 can do: copy within the store, and read what is there now.

S3A's own streams keep what they know of an object for a while (since 3.5), so a driver could read its claim as it was
before another one superseded it.

The requests are made by S3A's own factory and client, so its settings for endpoints, credentials and encryption hold.

Threads: any.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from coord_control.spark.hadoop_creates import HadoopPlace

__all__ = ["S3AObjects"]

_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_NO_SUCH_KEY: Final = "software.amazon.awssdk.services.s3.model.NoSuchKeyException"
_REFUSED: Final = "software.amazon.awssdk.services.s3.model.S3Exception"
_CONDITION_FAILED: Final = 412
_CRC32_BYTES: Final = 4


class S3AObjects:
    """The objects of one bucket.

    Args:
        jvm: the gateway's view of the JVM.
        place: in the bucket; of a file system for which :meth:`has` is true.
    """

    def __init__(self, jvm: Any, place: HadoopPlace) -> None:
        self._jvm = jvm
        internals = place.file_system.getS3AInternals()
        self._requests = internals.getStore().getRequestFactory()
        self._client = internals.getAmazonS3Client("copies of files that never change")

    @staticmethod
    def has(place: HadoopPlace) -> bool:
        """Return whether the place is in a bucket that S3A reads."""
        return bool(place.file_system.getClass().getName() == _CLASS)

    def copy(self, source: Any, target: Any, size: int, etag: str | None = None) -> str | None:
        """Copy an object of at most ``MAX_COPY_BYTES`` bytes in one request.

        Args:
            source: Hadoop's path of the object, and ``target`` that of the copy, in the same bucket.
            etag: of the content to copy; None for whatever is there.

        Returns:
            The CRC-32 of the content in hexadecimal digits, if the store keeps it with the object, else None.

        Raises:
            FileNotFoundError: there is no such object, or it holds something else.
        """
        model = self._jvm.software.amazon.awssdk.services.s3.model
        # Of what a HEAD request would bring, a copy needs the size alone.
        known = model.HeadObjectResponse.builder().contentLength(size).build()
        request = self._requests.newCopyObjectRequestBuilder(_key(source), _key(target), known)
        if etag is not None:
            request = request.copySourceIfMatch(etag)
        with _absence_of(source):
            return _crc32(self._client.copyObject(request.build()).copyObjectResult().checksumCRC32())

    def read(self, path: Any) -> bytes:
        """Return the content as it is now, in one request.

        Raises:
            FileNotFoundError: there is no such object.
        """
        request = self._requests.newGetObjectRequestBuilder(_key(path))
        with _absence_of(path):
            return bytes(self._client.getObjectAsBytes(request.build()).asByteArray())

    def open(self, path: Any) -> Any:
        """Return the content as it is now, as Java's stream, in one request.

        Raises:
            FileNotFoundError: there is no such object.
        """
        request = self._requests.newGetObjectRequestBuilder(_key(path))
        with _absence_of(path):
            return self._client.getObject(request.build())


@contextlib.contextmanager
def _absence_of(path: Any) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        if _says_absent(error.java_exception):
            raise FileNotFoundError(f"{path} does not exist") from None
        raise


def _says_absent(error: Any) -> bool:
    name = error.getClass().getName()
    return bool(name == _NO_SUCH_KEY or (name == _REFUSED and error.statusCode() == _CONDITION_FAILED))


def _crc32(checksum: str | None) -> str | None:
    """Return the checksum of a whole content. That of an upload in parts is one of the parts' checksums."""
    try:
        decoded = base64.b64decode(checksum or "", validate=True)
    except binascii.Error:
        return None
    return decoded.hex() if len(decoded) == _CRC32_BYTES else None


def _key(path: Any) -> str:
    return str(path.toUri().getPath()).lstrip("/")
