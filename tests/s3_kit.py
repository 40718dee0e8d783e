"""An S3 server of the test's own, and what a Spark session and a client need to reach it.

S3Mock looks whether an object exists before it writes it. With one thread for requests nothing happens in between, so a
conditional write has one winner, as on S3 itself (`docs/decisions/0034`). It writes a line for each request that it has
answered, which the tests count.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from scripts.connectors import jars
from tests.patience import SECONDS, eventually

__all__ = ["CuttingProxy", "LossyProxy", "Request", "S3Server"]

_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")
_STARTS: Final = 3
_METHODS: Final = (b"PUT ", b"GET ", b"HEAD ", b"POST ", b"DELETE ")


class Request(NamedTuple):
    """A request that the server has answered."""

    method: str
    path: str
    query: str
    status: int
    is_copy: bool
    received: int  #: bytes
    sent: int  #: bytes

    @property
    def kind(self) -> str:
        """What it was for: PUT, COPY, GET, HEAD, LIST, DELETE or POST."""
        if self.is_copy:
            return "COPY"
        return (
            "LIST" if self.method == "GET" and ("list-type" in self.query or "delimiter" in self.query) else self.method
        )


class S3Server:
    """One server with four buckets; running when it is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        # Names of its own: Hadoop keeps a file system by its bucket for the life of the JVM.
        self.buckets = [f"{name}-{uuid.uuid4().hex}" for name in ("jobs", "exports", "third", "fourth")]
        self.bucket, self.other_bucket, self.third_bucket, self.fourth_bucket = self.buckets
        for attempt in range(_STARTS):
            with contextlib.suppress(ChildProcessError):
                self._start()
                return
            assert attempt < _STARTS - 1, self.log()

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which clients of S3 find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret-of-somebody",
        }

    @property
    def settings(self) -> dict[str, str]:
        """Those of Hadoop, for the server's own buckets."""
        by_name = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": self.environment["AWS_ACCESS_KEY_ID"],
            "secret.key": self.environment["AWS_SECRET_ACCESS_KEY"],
            "connection.ssl.enabled": "false",
        }
        settings = {
            f"fs.s3a.bucket.{bucket}.{name}": value for bucket in self.buckets for name, value in by_name.items()
        }
        # In one of them the store keeps the checksums of what Spark writes.
        return {**settings, f"fs.s3a.bucket.{self.other_bucket}.create.checksum.algorithm": "CRC32"}

    def requests(self) -> list[Request]:
        """Return those that it has answered so far; it logs a request a moment after its answer."""
        found = self._logged()
        while True:
            time.sleep(0.5)
            before, found = found, self._logged()
            if len(found) == len(before):
                return found

    def _logged(self) -> list[Request]:
        found = []
        for path in sorted((self._folder / "requests").glob("*.log")):
            for line in path.read_text().splitlines():
                method, url, query, status, copy, received, sent = line.split(" ")
                sizes = [0 if size == "-" else int(size) for size in (received, sent)]
                found.append(Request(method, url, query, int(status), copy != "-", *sizes))
        return found

    def counted_since(self, earlier: int) -> Counter[str]:
        """Count the requests by kind, without the first ones."""
        return Counter(request.kind for request in self.requests()[earlier:])

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(SECONDS)

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text(errors="replace")

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self._port, unused = one.getsockname()[1], other.getsockname()[1]
        settings = {
            "server.address": "127.0.0.1",
            # The limits hold for this connector alone; the other one has its own threads.
            "server.port": self._port,
            "server.ssl.enabled": "false",
            "com.adobe.testing.s3mock.http-port": unused,
            "com.adobe.testing.s3mock.store.root": self._folder / "data",
            "com.adobe.testing.s3mock.store.initial-buckets": ",".join(self.buckets),
            "com.adobe.testing.s3mock.max-payload-size": "1GB",
            "server.tomcat.threads.max": 1,
            "server.tomcat.threads.min-spare": 1,
            "server.tomcat.accesslog.enabled": "true",
            "server.tomcat.accesslog.buffered": "false",
            "server.tomcat.accesslog.directory": self._folder / "requests",
            "server.tomcat.accesslog.pattern": "%m %U %q %s %{x-amz-copy-source}i %{content-length}i %b",
        }
        [jar] = jars("s3-server")
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        command = [shutil.which(java) or java, *_JAVA_OPTIONS, "-jar", str(jar), *arguments]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(self._answers, self.log)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise ChildProcessError(self.log())
        try:
            with urllib.request.urlopen(f"{self.endpoint}/", timeout=5):
                return True
        except OSError:
            return False


class LossyProxy:
    """Passes connections on to a server, and loses the answer to the first conditional write of each path."""

    def __init__(self, server: S3Server) -> None:
        self._target = int(server.endpoint.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost: list[str] = []  #: paths
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        # close() alone does not end an accept() that another thread waits in.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, contextlib.suppress(OSError):
            asked = b""
            while ready := select.select([client, server], [], [])[0]:
                if client in ready:
                    if not (data := client.recv(1 << 16)):
                        return
                    asked = data if data.startswith(_METHODS) else asked + data
                    server.sendall(data)
                if server in ready:
                    if not (data := server.recv(1 << 16)) or self._loses(asked):
                        return
                    client.sendall(data)

    def _loses(self, asked: bytes) -> bool:
        head = asked.partition(b"\r\n\r\n")[0]
        path = head.split(b" ")[1].decode()
        if b"if-none-match: *" not in head.lower() or path in self.lost:
            return False
        self.lost.append(path)
        return True


class CuttingProxy(LossyProxy):
    """Passes connections on to a server, and breaks off the first answer with the content of each large object."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._pieces: Counter[str] = Counter()

    def _loses(self, asked: bytes) -> bool:
        method, path = asked.partition(b"\r\n\r\n")[0].decode().split(" ")[:2]
        if method != "GET" or "?" in path:
            return False
        self._pieces[path] += 1
        if self._pieces[path] != 2:
            return False
        self.lost.append(path)
        return True
