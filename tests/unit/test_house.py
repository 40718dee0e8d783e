"""The rules of the house that no tool checks for us: mirrored tests, module size, exports, paths, dependency rows."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import coord_control
from tests.conftest import LONGEST, TESTS

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROTOCOL: Final = CHECKOUT / "coord_control" / "protocol"

MAX_SOURCE_LINES: Final = 500

#: Modules of the core without a test module of their own, and the reason.
NOT_MIRRORED: Final = {
    "job_facts": "values without a rule of their own",
    "query_in_core": "what test_job.py and its neighbours look at; a value without a rule",
}

#: Folders whose modules are each tested by name, or imported by a test module; "" is the top level. Elsewhere tests
#: are grouped by what users see (docs/decisions/0031).
TESTED_FOLDERS: Final = (
    "",
    "coordinators",
    "dagster/definitions",
    "durable/checkpoints",
    "durable/epochs",
    "durable/files",
    "durable/job_folder",
    "durable/offline",
    "durable/restore",
    "durable/spark_layout",
    "protocol",
    "protocol/scheduler",
    "spark/checkpoints",
    "spark/loop",
    "spark/wire",
)

#: What is tested through another module: the test that does it.
TESTED_THROUGH: Final = {
    "durable/checkpoints/leftovers": "unit/durable/test_checkpoint_store_crashes.py",
    "durable/epochs/generation_log": "unit/durable/test_epoch_store.py",
    "durable/files/json_records": "unit/durable/test_holds.py",
    "durable/files/object_facts": "unit/durable/test_objects.py",
    "durable/files/one_by_one": "spark/test_hadoop_files.py",
    "durable/restore/lineage_builder": "unit/durable/test_prepared_restore.py",
    "durable/restore/reached": "unit/durable/test_preflight.py",
    "protocol/query_in_core": "unit/protocol/test_job_runs.py",
}

#: Names that two modules of different folders share, and the reason. Those of cli/ are named after their commands.
SHARED_MODULE_NAMES: Final = {"job": "the core (JobCore) in protocol/, and what programs use (Job) in spark/job/"}

#: Names that classes of several modules share: each state machine has its own, and a table of them next to it.
SHARED_CLASS_NAMES: Final = frozenset({"Input", "Phase", "State"})

#: A path below somebody's home or workspace. Not after a scheme, a host or a variable: those are no machine's paths.
MACHINE_PATH: Final = re.compile(r"(?<![\w.:/$})>*~-])/(?:home|Users|root|work)/\w|\b[A-Z]:\\+Users\\")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (CHECKOUT / folder).rglob("*.py"))


def mirrors(module: str) -> list[Path]:
    """The test modules of a module of the core; `test_job_fencing.py` is one of `job` as well."""
    folders = (CHECKOUT / "tests" / "unit" / "protocol", CHECKOUT / "tests" / "machines")
    patterns = (f"test_{module}.py", f"test_{module}_*.py")
    return [path for folder in folders for pattern in patterns for path in folder.glob(pattern)]


def core_modules() -> list[str]:
    return sorted(path.stem for path in PROTOCOL.rglob("*.py") if path.stem != "__init__")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def distribution(requirement: str) -> str:
    """`Pandas[x]>=2,<3; marker` -> `pandas`."""
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def declared_dependencies() -> set[str]:
    data = pyproject()
    groups = [data["project"]["dependencies"], *data["project"]["optional-dependencies"].values()]
    groups.append(data["build-system"]["requires"])
    names = {distribution(requirement) for group in groups for requirement in group}
    return names - {data["project"]["name"]}


def documented_dependencies() -> dict[str, list[str]]:
    """Name -> the other cells, for each row of docs/dependencies.md whose first cell is a name in backticks."""
    rows: dict[str, list[str]] = {}
    for line in (CHECKOUT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines():
        match = re.match(r"\|\s*`([^`]+)`\s*\|(.*)\|\s*$", line)
        if match:
            assert match[1] not in rows, f"docs/dependencies.md has two rows for {match[1]}"
            rows[match[1]] = [cell.strip() for cell in match[2].split("|")]
    return rows


def tracked_texts() -> dict[str, str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout, so nothing is tracked")
    texts = {}
    for name in filter(None, listing.stdout.split("\0")):
        path = CHECKOUT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            texts[name] = content.decode("utf-8", errors="replace")
    return texts


@pytest.mark.parametrize("module", core_modules())
def test_every_module_of_the_core_has_a_test_module_of_its_own(module: str) -> None:
    if module in NOT_MIRRORED:
        assert not mirrors(module), f"{module} has a test module now: remove it from NOT_MIRRORED"
    else:
        assert mirrors(module), f"write tests/unit/protocol/test_{module}.py, or give the reason in NOT_MIRRORED"


def modules_with_tests() -> list[str]:
    product = CHECKOUT / "coord_control"
    paths = [path for folder in TESTED_FOLDERS for path in (product / folder).glob("*.py") if path.stem[:2] != "__"]
    return sorted(path.relative_to(product).with_suffix("").as_posix() for path in paths)


@functools.cache
def imports_of(test: Path) -> frozenset[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def covering(module: str) -> list[Path]:
    """The test modules that are named after a module, or import it."""
    name, dotted = module.rpartition("/")[2], f"coord_control.{module.replace('/', '.')}"
    named = re.compile(rf"test_{name}(_\w+)?")
    return [path for path in TESTS.rglob("test_*.py") if named.fullmatch(path.stem) or dotted in imports_of(path)]


def test_every_module_of_these_folders_has_tests() -> None:
    untested = {module for module in modules_with_tests() if not covering(module)}
    assert untested == TESTED_THROUGH.keys(), "write a test for each that is new, and remove what has one"
    assert [test for test in TESTED_THROUGH.values() if not (TESTS / test).is_file()] == []


def product_modules() -> list[Path]:
    return [path for path in sources("coord_control") if path.stem[:2] != "__"]


def test_no_two_modules_of_the_product_have_one_name() -> None:
    names = Counter(path.stem for path in product_modules() if path.parent.name != "cli")
    twice = {name for name, count in names.items() if count > 1}
    assert twice == SHARED_MODULE_NAMES.keys(), "a name says which of them it is"


def test_no_two_classes_of_the_product_have_one_name() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in product_modules()]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    twice = {name for name, count in names.items() if count > 1 and not name.startswith("_")}
    assert twice == SHARED_CLASS_NAMES, "a name says which of them it is"


def test_exemptions_from_the_mirror_name_modules_that_exist() -> None:
    assert NOT_MIRRORED.keys() <= set(core_modules())


def test_the_core_has_at_least_as_many_lines_of_test_as_of_source() -> None:
    def lines(paths: list[Path]) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)

    tests = {path for module in core_modules() for path in mirrors(module)}
    assert lines(sorted(tests)) >= lines(sources("coord_control/protocol"))


def test_no_source_file_is_too_long_to_read() -> None:
    files = sources("coord_control", "examples", "benchmarks")
    lengths = {path.relative_to(CHECKOUT): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    too_long = {str(path): length for path, length in lengths.items() if length > MAX_SOURCE_LINES}
    assert lengths
    assert not too_long, "split these: which noun is hiding in them?"


def test_every_public_name_can_be_imported_from_the_package() -> None:
    package = importlib.import_module("coord_control")
    missing = [name for name in coord_control.__all__ if not hasattr(package, name)]
    assert not missing
    assert len(set(coord_control.__all__)) == len(coord_control.__all__)


def test_the_package_exports_exactly_the_names_that_it_takes_from_its_modules() -> None:
    # Read, not run: the names are loaded lazily, but type checkers see the same imports as we do here.
    tree = ast.parse((CHECKOUT / "coord_control" / "__init__.py").read_text(encoding="utf-8"))
    taken = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coord_control")
        for alias in node.names
    }
    assert taken == set(coord_control.__all__)


def test_no_tracked_file_names_a_path_of_a_developers_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see " + "/home" + "/ada/notes", True),
        ('"' + "/Users" + '/ada"', True),
        ("C:" + "\\Users" + "\\ada", True),
        ("hdfs://host" + "/work" + "/jobs", False),
        ("$TMP" + "/work" + "/jobs", False),
        ("the user's home", False),
    ],
)
def test_the_search_for_paths_finds_them_and_only_them(text: str, found: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is found


def test_every_dependency_has_a_row_in_the_documentation_and_every_row_a_dependency() -> None:
    assert documented_dependencies().keys() == declared_dependencies()


def test_every_row_about_a_dependency_is_complete() -> None:
    incomplete = [name for name, cells in documented_dependencies().items() if len(cells) != 4 or not all(cells)]
    assert not incomplete


def test_the_files_that_come_first_among_the_dear_tests_exist() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
