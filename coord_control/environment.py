"""The checks of ``coordctl doctor`` before Spark is started: Python, packages, Java, network, disk, storage.

Each check is split into a function that reads (a version, the free disk space) and one that judges the result, so that
every verdict can be tested on any machine. A failed check always names the next step.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coord_control.errors import AlreadyExists, JavaMissing, NoAtomicCreate, PackageMissing, StoreError

if TYPE_CHECKING:
    from coord_control.durable.files.filesystem import Files

__all__ = [
    "BASE_PACKAGES",
    "SPARK_PACKAGES",
    "EnvironmentCheck",
    "Java",
    "Status",
    "check_disk",
    "check_host",
    "check_java",
    "check_loopback",
    "check_mount",
    "check_package",
    "check_packages",
    "check_python",
    "check_storage",
    "find_java",
    "has_spark",
    "local_path",
    "read_mounts",
    "require_java",
    "require_spark",
]

#: The same ranges as in pyproject.toml.
BASE_PACKAGES: Final[Mapping[str, str]] = {"pydantic": ">=2.12", "msgspec": ">=0.19"}
SPARK_PACKAGES: Final[Mapping[str, str]] = {"pyspark": ">=3.5,<5", "pyarrow": ">=18", "pandas": ">=2.2,<3"}

_MIN_PYTHON: Final = (3, 11)
_MIN_JAVA: Final = 17
_GIB: Final = 1024**3
_DISK_LOW: Final = 5 * _GIB
_DISK_FULL: Final = 1 * _GIB
_JAVA_SECONDS: Final = 20.0
#: A create that looks first loses nearly every one of them.
_RACES: Final = 20
_RACE_SECONDS: Final = 20.0
_JAVA_INSTALL: Final = {
    "apt-get": "apt-get install openjdk-17-jre-headless",
    "dnf": "dnf install java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "brew": "brew install openjdk@17",
}


class Status(enum.Enum):
    """The verdict of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """One line of the report."""

    name: str
    status: Status
    found: str
    expected: str
    next_step: str = ""


def check_python(version: tuple[int, int, int]) -> EnvironmentCheck:
    """Judge the version of the interpreter that will run the driver."""
    expected = f"{_dotted(_MIN_PYTHON)} or newer"
    found = f"{_dotted(version)} ({sys.executable})"
    if version >= _MIN_PYTHON:
        return EnvironmentCheck("python", Status.OK, found, expected)
    return EnvironmentCheck(
        "python", Status.FAILED, found, expected, f"make a virtual environment with Python {expected}"
    )


# --- Java


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that Spark's launcher would use."""

    path: str
    source: str  #: "JAVA_HOME" or "PATH"
    banner: str | None  #: the output of ``java -version``, or None if it could not be run


def find_java(environment: Mapping[str, str]) -> Java | None:
    """Look for Java where Spark's launcher does: JAVA_HOME if it is set, else PATH."""
    place = _java_place(environment)
    return None if place is None else Java(*place, _java_banner(place[0]))


def require_java(environment: Mapping[str, str]) -> None:
    """Check that there is a Java, without running it for its version, which takes a second.

    If there is a ``spark-env.sh``, which may set one, that is left to Spark's launcher.

    Raises:
        JavaMissing: there is none; with the message of :func:`check_java`.
    """
    place = _java_place(environment)
    if (place is not None and shutil.which(place[0]) is not None) or _has_spark_env(environment):
        return
    check = check_java(None if place is None else Java(*place, None))
    raise JavaMissing(check.found, check.next_step)


def _has_spark_env(environment: Mapping[str, str]) -> bool:
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (None if home is None else os.path.join(home, "conf"))
    return folder is not None and os.path.exists(os.path.join(folder, "spark-env.sh"))


def _java_place(environment: Mapping[str, str]) -> tuple[str, str] | None:
    home = environment.get("JAVA_HOME")
    if home:
        return str(Path(home) / "bin" / "java"), "JAVA_HOME"
    on_path = shutil.which("java", path=environment.get("PATH"))
    return None if on_path is None else (on_path, "PATH")


def check_java(java: Java | None) -> EnvironmentCheck:
    """Judge the version of Java."""
    expected, install = f"{_MIN_JAVA} or newer", _java_install()
    if java is None:
        return EnvironmentCheck("java", Status.FAILED, "no JAVA_HOME, no java on PATH", expected, install)
    found = f"{java.path} (from {java.source})"
    if java.banner is None:
        hint = "let JAVA_HOME name a Java installation, or unset it" if java.source == "JAVA_HOME" else install
        return EnvironmentCheck("java", Status.FAILED, f"{found} cannot be run", expected, hint)
    version = _java_version(java.banner)
    if version is None:
        hint = f"run {java.path} -version and see whether it is version {expected}"
        return EnvironmentCheck("java", Status.WARNING, f"{found} of unknown version", expected, hint)
    if version < _MIN_JAVA:
        hint = f"{install}; or set JAVA_HOME to a newer one"
        return EnvironmentCheck("java", Status.FAILED, f"{version}: {found}", expected, hint)
    return EnvironmentCheck("java", Status.OK, f"{version}: {found}", expected)


def _java_banner(path: str) -> str | None:
    try:
        done = subprocess.run(
            [path, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def _java_version(banner: str) -> int | None:
    match = re.search(r'version "(?:1\.)?(\d+)', banner)  # up to Java 8 the version was "1.8"
    return int(match[1]) if match else None


def _java_install() -> str:
    for tool, command in _JAVA_INSTALL.items():
        if shutil.which(tool):
            return command
    return f"install a Java runtime of version {_MIN_JAVA} and let JAVA_HOME name it"


# --- packages


def has_spark() -> bool:
    """Return whether PySpark can be imported: installed, or on the path of modules, as on a cluster."""
    return importlib.util.find_spec("pyspark") is not None


def require_spark(what: str) -> None:
    """Check that PySpark can be imported, without importing it.

    Args:
        what: what needs it, for the message.

    Raises:
        PackageMissing: it cannot.
    """
    if not has_spark():
        raise PackageMissing(what, "pyspark", "spark")


def check_packages() -> list[EnvironmentCheck]:
    """Judge the installed version of every package that matters, without importing it."""
    packages = {**SPARK_PACKAGES, **BASE_PACKAGES} if has_spark() else BASE_PACKAGES
    checks = [check_package(name, _installed(name), range_) for name, range_ in packages.items()]
    if has_spark():
        return checks
    install = "drivers of jobs need it: pip install 'coord-control[spark]'"
    return [EnvironmentCheck("pyspark", Status.WARNING, "not installed", SPARK_PACKAGES["pyspark"], install), *checks]


def check_package(name: str, version: str | None, range_: str) -> EnvironmentCheck:
    """Judge one version.

    Args:
        version: None when the package is not installed.
        range_: for example ``>=2.2,<3``.
    """
    if version is not None and all(_satisfies(version, bound) for bound in range_.split(",")):
        return EnvironmentCheck(name, Status.OK, version, range_)
    install = f"{sys.executable} -m pip install '{name}{range_}'"
    return EnvironmentCheck(name, Status.FAILED, version or "not installed", range_, install)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _satisfies(version: str, bound: str) -> bool:
    if bound.startswith(">="):
        return _numbers(version) >= _numbers(bound[2:])
    return _numbers(version) < _numbers(bound.removeprefix("<"))


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


# --- network


def check_loopback() -> EnvironmentCheck:
    """Listen on the loopback interface and connect to it, as the driver's endpoint does."""
    expected = "a TCP connection to 127.0.0.1"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5.0):
                return EnvironmentCheck("loopback", Status.OK, f"connected to port {port}", expected)
    except OSError as error:
        hint = "let the sandbox or the firewall of this machine allow connections to itself"
        return EnvironmentCheck("loopback", Status.FAILED, str(error), expected, hint)


def check_host(
    environment: Mapping[str, str], resolve: Callable[[str], str] = socket.gethostbyname
) -> EnvironmentCheck:
    """Judge the name under which Spark's executors will look for the driver.

    Args:
        resolve: the address of a name; raises OSError when there is none.
    """
    host = environment.get("SPARK_LOCAL_HOSTNAME") or environment.get("SPARK_LOCAL_IP") or socket.gethostname()
    expected = "the driver host's name has an address"
    try:
        address = resolve(host)
    except OSError as error:
        hint = (
            f"add {host} to /etc/hosts, or set SPARK_LOCAL_IP=127.0.0.1 (one machine) or spark.driver.host (a cluster)"
        )
        return EnvironmentCheck("driver host", Status.FAILED, f"{host}: {error}", expected, hint)
    return EnvironmentCheck("driver host", Status.OK, f"{host} is {address}", expected)


# --- disk and storage


def local_path(root: str) -> Path | None:
    """Return the local path of a root, or None if it is a URI of another file system."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?(.*)", root)
    if match is None:
        return Path(root).absolute()
    return Path(match[2]) if match[1] == "file" and match[2].startswith("/") else None


def check_disk(name: str, path: Path, free_bytes: Callable[[Path], int] | None = None) -> EnvironmentCheck:
    """Judge the free space where ``path`` lies or will lie."""
    existing = next(parent for parent in [path, *path.parents] if parent.exists())
    free = free_bytes(existing) if free_bytes else shutil.disk_usage(existing).free
    found, expected = f"{free / _GIB:.1f} GiB free in {existing}", f"{_DISK_LOW // _GIB} GiB free"
    if free >= _DISK_LOW:
        return EnvironmentCheck(name, Status.OK, found, expected)
    status = Status.WARNING if free >= _DISK_FULL else Status.FAILED
    return EnvironmentCheck(name, status, found, expected, "free some space, or choose another place")


#: Mount options, by file system, with which an opened file may show old content after another machine replaced it.
_STALE_READS: Final[Mapping[str, str]] = {"nfs": "nocto", "nfs4": "nocto", "cifs": "cache=loose", "smb3": "cache=loose"}


def read_mounts() -> str | None:
    """Return the system's table of mounts, or None if it has no ``/proc/mounts``."""
    try:
        return Path("/proc/mounts").read_text()
    except OSError:
        return None


def check_mount(path: Path, mounts: str) -> EnvironmentCheck:
    """Judge how the file system of ``path`` is mounted: a driver must notice immediately that another one took over.

    Args:
        path: absolute.
        mounts: lines as in ``/proc/mounts``.
    """
    fields = [line.split(" ") for line in mounts.splitlines()]
    # Blanks in a mount point are written as octal numbers. Of two mounts at one place the later one counts.
    places = {
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), place): (kind, options)
        for _, place, kind, options, *_ in fields
    }
    place = max((place for place in places if path.is_relative_to(place)), key=len, default="/")
    kind, options = places.get(place, ("unknown", ""))
    expected = "a file that is opened is the one that the server has"
    stale = _STALE_READS.get(kind)
    if stale is None or stale not in options.split(","):
        return EnvironmentCheck("mount", Status.OK, f"{place} is {kind}", expected)
    hint = f"mount {place} without {stale}: with it a driver that was replaced may keep running for up to a minute"
    return EnvironmentCheck("mount", Status.FAILED, f"{place} is {kind} with {stale}", expected, hint)


def check_storage(root: str, files: Files) -> EnvironmentCheck:
    """Create, refuse to create again, read and delete small files, in the same way as all records are written.

    Two writers create each of several files at the same moment: a storage that looks first and writes later lets both
    succeed.
    """
    expected = "create (atomic, synced, refused when there, one winner of two at once), read, delete"
    path = f"{root.rstrip('/')}/doctor-{uuid.uuid4().hex}"
    try:
        problem = _exercise(files, f"{path}/once") or _race(files, path)
    except NoAtomicCreate as error:
        return EnvironmentCheck("storage", Status.FAILED, error.why, expected, str(error))
    except (StoreError, OSError) as error:
        problem = str(error)
    finally:
        with contextlib.suppress(StoreError, OSError):
            files.delete(path)
    if problem is None:
        return EnvironmentCheck("storage", Status.OK, root, expected)
    hint = f"give the user {os.getuid()} the right to write to {root}, or choose another root"
    return EnvironmentCheck("storage", Status.FAILED, problem, expected, hint)


def _exercise(files: Files, path: str) -> str | None:
    content = uuid.uuid4().bytes
    files.create(path, content)
    try:
        files.create(path, b"")
        return f"{path} could be created twice: two drivers could both own a job"
    except AlreadyExists:
        pass
    return None if files.read(path) == content else f"{path} does not hold what was written to it"


def _race(files: Files, folder: str) -> str | None:
    with ThreadPoolExecutor(2) as writers:
        for number in range(_RACES):
            path = f"{folder}/{number}"
            start = threading.Barrier(2)
            attempts = [writers.submit(_create_at_once, files, path, start) for _ in range(2)]
            won = [content for attempt in attempts if (content := attempt.result()) is not None]
            if len(won) == 2:
                return f"{path} was created by two writers at once: two drivers could both own a job"
            if [files.read(path)] != won:
                return f"{path} does not hold what the writer that created it wrote"
    return None


def _create_at_once(files: Files, path: str, start: threading.Barrier) -> bytes | None:
    content = uuid.uuid4().bytes
    start.wait(_RACE_SECONDS)
    try:
        files.create(path, content)
    except AlreadyExists:
        return None
    return content


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
