"""The jars for the tests of connectors: fetched once, with the right checksum or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts import connectors
from scripts.connectors import ConnectorsMissing, cache, fetch, jars, sets

CHECKOUT: Final = Path(__file__).resolve().parents[2]

_LIST: Final = """
[one]
"org.example:lib_2.13:1.0" = "{right}"
"org.example:native:2.0:linux" = "{right}"

[two]
"org.example:lib_2.13:1.0" = "{right}"
"""
#: Leaves the jars where the project that it is given says; COUNT has a line per call.
_MAVEN: Final = f"""#!{sys.executable}
import os, pathlib, re, sys
pathlib.Path(os.environ["COUNT"]).open("a").write("called\\n")
pom = pathlib.Path(sys.argv[sys.argv.index("--file") + 1]).read_text()
if "FAIL" in os.environ:
    sys.exit("[ERROR] no such artifact")
target = pathlib.Path(re.search("<outputDirectory>(.*)</outputDirectory>", pom)[1])
target.mkdir()
for item in re.findall("<artifactItem>(.*)</artifactItem>", pom):
    group, *rest = re.findall(">([^<]+)</", item)
    (target / ("-".join([group + "." + rest[0], *rest[1:]]) + ".jar")).write_text(os.environ.get("CONTENT", "right"))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of three jars, an empty cache, and a program `mvn`; the file of its calls."""
    pinned, programs, calls = tmp_path / "connectors.toml", tmp_path / "bin", tmp_path / "calls"
    pinned.write_text(_LIST.format(right=hashlib.sha256(b"right").hexdigest()))
    programs.mkdir()
    maven = programs / "mvn"
    maven.write_text(_MAVEN)
    maven.chmod(maven.stat().st_mode | stat.S_IXUSR)
    calls.touch()
    monkeypatch.setattr(connectors, "_PINNED", pinned)
    monkeypatch.setenv("COORD_CONNECTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("COUNT", str(calls))
    return calls


def test_jars_are_fetched_once_each_for_all_sets(calls: Path) -> None:
    with pytest.raises(ConnectorsMissing, match=r"2 of 2 jars of 'one' are not in .*make connectors"):
        jars("one")
    assert fetch() == 2
    assert [path.read_text() for path in jars("one")] == ["right", "right"]
    assert jars("two") == jars("one")[:1]
    assert fetch() == 0
    assert calls.read_text() == "called\n"
    assert sorted(path.name for path in cache().iterdir()) == [
        "lock",
        "org.example.lib_2.13-1.0.jar",
        "org.example.native-2.0-linux.jar",
    ]


def test_a_damaged_jar_is_fetched_again(calls: Path) -> None:
    fetch()
    jars("two")[0].write_text("damaged")
    assert fetch() == 1
    assert jars("two")[0].read_text() == "right"


def test_a_jar_with_another_checksum_is_refused_and_not_kept(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTENT", "wrong")
    with pytest.raises(ConnectorsMissing, match=r"has the SHA-256 .* pins .*: do not use it"):
        fetch()
    assert [path.name for path in cache().iterdir()] == ["lock"]


def test_what_maven_cannot_fetch_is_tried_three_times_and_said_in_its_words(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(ConnectorsMissing, match=r"mvn could not fetch the jars: .*no such artifact"):
        fetch()
    assert calls.read_text() == "called\n" * 3


def test_without_maven_the_command_that_installs_it_is_named(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert connectors.main(optional=False) == 1
    assert "there is no mvn" in (said := capsys.readouterr().err)
    assert "apt-get install maven" in said
    assert connectors.main(optional=True) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("The connectors are not tested: there is no mvn")


def test_the_pinned_list_is_well_formed() -> None:
    for pinned in sets().values():
        for jar in pinned:
            assert len(jar.coordinates.split(":")) in (3, 4)
            assert len(bytes.fromhex(jar.sha256)) == 32


@pytest.mark.parametrize(("demand", "code"), [("", 0), ("required", 4)])
def test_without_the_jars_the_tests_of_connectors_are_left_out_and_a_run_that_must_have_them_fails(
    tmp_path: Path, demand: str, code: int
) -> None:
    environment = {**os.environ, "COORD_CONNECTORS_CACHE": str(tmp_path), "COORD_CONNECTORS": demand}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    command += ["tests/connectors", "tests/unit/test_words.py"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert "make connectors" in done.stdout + done.stderr
    assert "test_kafka" not in done.stdout
