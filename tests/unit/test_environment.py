from __future__ import annotations

import threading
import tomllib
from pathlib import Path

import pytest

from coord_control import environment
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.environment import Java, Status
from coord_control.errors import AlreadyExists, JavaMissing, NoAtomicCreate

_GIB = 1024**3


@pytest.mark.parametrize(("version", "status"), [((3, 11, 0), Status.OK), ((3, 10, 14), Status.FAILED)])
def test_python(version: tuple[int, int, int], status: Status) -> None:
    check = environment.check_python(version)

    assert check.status is status
    assert bool(check.next_step) == (status is Status.FAILED)


@pytest.mark.parametrize(
    ("banner", "status", "found"),
    [
        ('openjdk version "17.0.15" 2025-04-15', Status.OK, "17"),
        ('openjdk version "21" 2023-09-19', Status.OK, "21"),
        ('java version "1.8.0_402"', Status.FAILED, "8"),
        ('openjdk version "11.0.2"', Status.FAILED, "11"),
        ("something else", Status.WARNING, "unknown version"),
        (None, Status.FAILED, "cannot be run"),
    ],
)
def test_java(banner: str | None, status: Status, found: str) -> None:
    check = environment.check_java(Java("/opt/java/bin/java", "JAVA_HOME", banner))

    assert check.status is status
    assert found in check.found
    assert bool(check.next_step) == (status is not Status.OK)


def test_no_java_at_all_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: "/usr/bin/apt-get" if tool == "apt-get" else None)

    check = environment.check_java(None)

    assert (check.status, check.next_step) == (Status.FAILED, "apt-get install openjdk-17-jre-headless")


def test_java_home_is_taken_before_path_as_spark_does(tmp_path: Path) -> None:
    _fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    _fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    variables = {"PATH": str(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")}

    assert environment.find_java(variables) == Java(
        str(tmp_path / "home" / "bin" / "java"), "JAVA_HOME", 'openjdk version "21.0.1"\n'
    )
    del variables["JAVA_HOME"]
    assert environment.find_java(variables) == Java(
        str(tmp_path / "path" / "java"), "PATH", 'openjdk version "17.0.1"\n'
    )
    assert environment.find_java({"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_a_java_that_sparks_own_settings_may_name_is_not_asked_for(tmp_path: Path, variable: str) -> None:
    folder = tmp_path / "conf" if variable == "SPARK_HOME" else tmp_path
    folder.mkdir(exist_ok=True)
    variables = {"PATH": "", variable: str(tmp_path)}
    with pytest.raises(JavaMissing, match="no java on PATH"):
        environment.require_java(variables)
    (folder / "spark-env.sh").touch()
    environment.require_java(variables)


def test_a_java_home_without_java_is_not_passed_over(tmp_path: Path) -> None:
    java = environment.find_java({"JAVA_HOME": str(tmp_path)})

    assert java is not None
    assert java.banner is None
    assert environment.check_java(java).next_step == "let JAVA_HOME name a Java installation, or unset it"


def _fake_java(folder: Path, banner: str) -> None:
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "range_", "status"),
    [
        ("2.3.3", ">=2.2,<3", Status.OK),
        ("3.0.0", ">=2.2,<3", Status.FAILED),
        ("2.10", ">=2.2,<3", Status.OK),
        ("2.1.9", ">=2.2,<3", Status.FAILED),
        ("4.1.0.dev1", ">=4.1,<5", Status.OK),
        (None, ">=15", Status.FAILED),
    ],
)
def test_package_versions(version: str | None, range_: str, status: Status) -> None:
    check = environment.check_package("thing", version, range_)

    assert check.status is status
    assert (f"pip install 'thing{range_}'" in check.next_step) == (status is Status.FAILED)


def test_the_supported_ranges_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    for packages, declared in (
        (environment.BASE_PACKAGES, project["dependencies"]),
        (environment.SPARK_PACKAGES, project["optional-dependencies"]["spark"]),
    ):
        assert {f"{name}{range_}" for name, range_ in packages.items()} <= set(declared)
    assert project["requires-python"] == ">=3.11"


def test_loopback_of_this_machine() -> None:
    assert environment.check_loopback().status is Status.OK


def test_a_host_without_an_address_is_told_what_to_set() -> None:
    def resolve(name: str) -> str:
        raise OSError(f"{name}: name or service not known")

    check = environment.check_host({"SPARK_LOCAL_HOSTNAME": "nowhere"}, resolve)

    assert check.status is Status.FAILED
    assert "nowhere" in check.found
    assert "spark.driver.host" in check.next_step


def test_a_host_with_an_address() -> None:
    check = environment.check_host({"SPARK_LOCAL_IP": "10.0.0.7"}, lambda name: "10.0.0.7")

    assert (check.status, check.found) == (Status.OK, "10.0.0.7 is 10.0.0.7")


@pytest.mark.parametrize(
    ("free", "status"), [(6 * _GIB, Status.OK), (2 * _GIB, Status.WARNING), (_GIB // 2, Status.FAILED)]
)
def test_free_disk_where_a_folder_will_be_made(tmp_path: Path, free: int, status: Status) -> None:
    asked: list[Path] = []

    def free_bytes(path: Path) -> int:
        asked.append(path)
        return free

    check = environment.check_disk("disk", tmp_path / "not" / "yet", free_bytes)

    assert check.status is status
    assert asked == [tmp_path]


def test_a_storage_that_keeps_its_promises_is_left_as_it_was(tmp_path: Path) -> None:
    assert environment.check_storage(str(tmp_path), LocalFiles()).status is Status.OK
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_fails_with_the_next_step(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("")

    check = environment.check_storage(str(root), LocalFiles())

    assert check.status is Status.FAILED
    assert "choose another root" in check.next_step


class _NeverRefuses(LocalFiles):
    """A storage whose create is not exclusive, as some network file systems have it."""

    def create(self, path: str, data: bytes) -> None:
        try:
            super().create(path, data)
        except AlreadyExists:
            super().replace(path, data)


def test_a_storage_without_an_exclusive_create_is_found_out(tmp_path: Path) -> None:
    check = environment.check_storage(str(tmp_path), _NeverRefuses())

    assert check.status is Status.FAILED
    assert "created twice" in check.found


class _LooksFirst(LocalFiles):
    """A storage whose create looks first and writes later, so that it refuses only who comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Barrier(2)

    def create(self, path: str, data: bytes) -> None:
        if self.exists(path):
            raise AlreadyExists(path)
        if not path.endswith("/once"):
            self.looked.wait(10)
        self.replace(path, data)


def test_a_storage_where_two_writers_at_once_both_succeed_is_found_out(tmp_path: Path) -> None:
    check = environment.check_storage(str(tmp_path), _LooksFirst())

    assert check.status is Status.FAILED
    assert "created by two writers at once" in check.found
    assert list(tmp_path.iterdir()) == []


class _Refuses(LocalFiles):
    def create(self, path: str, data: bytes) -> None:
        raise NoAtomicCreate(path, "the file system of ftp:// excludes no other writer")


def test_a_storage_without_an_atomic_create_fails_with_the_way_out(tmp_path: Path) -> None:
    check = environment.check_storage(str(tmp_path), _Refuses())

    assert (check.status, check.found) == (Status.FAILED, "the file system of ftp:// excludes no other writer")
    assert "Choose a root on a local disk" in check.next_step


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/data/jobs", Path("/data/jobs")),
        ("file:/data/jobs", Path("/data/jobs")),
        ("file:///data/jobs", Path("/data/jobs")),
        ("s3a://bucket/jobs", None),
        ("hdfs://host:8020/jobs", None),
        ("file://host/jobs", None),
    ],
)
def test_the_path_of_a_root_on_this_machine(root: str, path: Path | None) -> None:
    assert environment.local_path(root) == path


_MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
filer:/export /mnt/jobs nfs4 rw,relatime,vers=4.2,hard,proto=tcp,local_lock=none 0 0
filer:/old /mnt/jobs/old\\040ones nfs rw,vers=3,hard,nocto,actimeo=60 0 0
//win/share /mnt/share cifs rw,cache=loose 0 0
"""


@pytest.mark.parametrize(
    ("path", "status", "found"),
    [
        ("/srv/jobs", Status.OK, "/ is ext4"),
        ("/mnt/jobs/flights", Status.OK, "/mnt/jobs is nfs4"),
        ("/mnt/jobs/old ones/flights", Status.FAILED, "/mnt/jobs/old ones is nfs with nocto"),
        ("/mnt/share", Status.FAILED, "/mnt/share is cifs with cache=loose"),
    ],
)
def test_a_mount_that_shows_what_a_file_held_before_is_named(path: str, status: Status, found: str) -> None:
    check = environment.check_mount(Path(path), _MOUNTS)

    assert (check.status, check.found) == (status, found)
    assert bool(check.next_step) == (status is Status.FAILED)


def test_of_two_mounts_at_one_place_the_later_one_counts() -> None:
    check = environment.check_mount(Path("/mnt/jobs"), _MOUNTS + "new:/x /mnt/jobs nfs4 rw,nocto 0 0\n")

    assert check.status is Status.FAILED


def test_the_mounts_of_this_machine_can_be_read(tmp_path: Path) -> None:
    mounts = environment.read_mounts()

    assert mounts is not None
    assert environment.check_mount(tmp_path, mounts).found.partition(" is ")[0].startswith("/")
