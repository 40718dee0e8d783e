"""Which files a restore reads again, and which of them are gone."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote

import pytest

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import FileEntry, QuerySnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.job_folder.lineage_record import encode_record, read_record
from coord_control.durable.restore import preflight_sources
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.durable.restore.preflight_sources import check_sources
from coord_control.errors import StoreUnavailable
from coord_control.ids import Epoch, QueryName
from tests.mutations.mutation import Mutation
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.metadata_kit import full_metadata

ROOT: Final = "/jobs"
Q: Final = QueryName("q")
FOLDER: Final = f"{ROOT}/flights/queries/q"
SAVEPOINT: Final = "/savepoints/one"
KAFKA: Final = '{"topic":{"0":17}}'


def log(numbers: Iterable[int], folder: str = "/in") -> bytes:
    """An entry of the log of a file source that has read one file with each offset."""
    files = [{"path": f"file://{quote(folder)}/{n}.json", "timestamp": 1, "batchId": n} for n in numbers]
    return "\n".join(["v1", *map(json.dumps, files)]).encode()


def there(files: Files, *numbers: int, folder: str = "/in") -> None:
    """Put input files where they were read."""
    for number in numbers:
        files.replace(f"file://{folder}/{number}.json", b"")


def read_by(files: Files, number: int, logs: dict[str, bytes], query_id: str = "the id") -> None:
    """A lineage of the query, whose sources have these logs."""
    record = read_record(files, FOLDER, "lineage-000001")
    if record is None:
        lineage = open_lineage(files, FOLDER, Q, {})
        record = read_record(files, FOLDER, lineage.name)
        assert record is not None
    place = join(FOLDER, f"lineage-{number:06}")
    here = {"query_id": query_id, "checkpoint_location": join(place, "spark")}
    files.replace(join(place, "lineage.json"), encode_record(record.model_copy(update=here)))
    for name, data in logs.items():
        files.replace(join(place, "spark/sources", name), data)


def cut(
    files: Files,
    logs: dict[str, bytes],
    offsets: str = '{"logOffset":1}',
    *,
    epoch: int = 1,
    version: str = "v1",
    lineage: str = "lineage-000001",
) -> CheckpointSource:
    """A savepoint of the lineage after an epoch."""
    contents = {f"sources/{name}": data for name, data in logs.items()}
    if epoch >= 0:
        contents[f"offsets/{epoch}"] = f"{version}\n{{}}\n{offsets}".encode()
    entries = []
    for name, data in contents.items():
        files.replace(join(SAVEPOINT, "queries", Q, "spark", name), data)
        entries.append(FileEntry(name, len(data), f"{zlib.crc32(data):08x}"))
    snapshot = QuerySnapshot(
        query_id="the id", epoch=Epoch(epoch), lineage=lineage, spark_version="4.3.0", files=tuple(entries)
    )
    metadata = full_metadata().model_copy(update={"job": "flights", "queries": {Q: snapshot}, "operators": {}})
    return CheckpointSource(SAVEPOINT, metadata, files)


def checked(files: Files, source: CheckpointSource, *, allow: bool = False) -> list[Check]:
    return check_sources(files, lambda path: files, ROOT, source, allow_missing_input=allow)


def found(files: Files, source: CheckpointSource, *, allow: bool = False) -> tuple[Verdict, str]:
    """The one check of the one source."""
    [check] = checked(files, source, allow=allow)
    assert (check.name, check.subject) == ("input", "q/0")
    return check.verdict, check.found


def older(files: MemoryFiles) -> CheckpointSource:
    """A cut with the files 0 and 1, of a lineage that has read up to 4; all files are there but the first."""
    read_by(files, 1, {f"0/{number}": log([number]) for number in range(5)})
    there(files, 1, 2, 3, 4)
    return cut(files, {"0/0": log([0]), "0/1": log([1])})


def all_there_is_fine(files: MemoryFiles, source: CheckpointSource) -> None:
    assert found(files, source) == (Verdict.OK, "all 3 files that were read after the checkpoint are there")


def what_is_gone_refuses(files: MemoryFiles, source: CheckpointSource) -> None:
    files.delete("file:///in/3.json")
    verdict, what = found(files, source)
    assert verdict is Verdict.REFUSED
    assert what.startswith("1 of 3 files that were read after the checkpoint are gone")
    assert "file:///in/3.json" in what
    assert found(files, source, allow=True) == (Verdict.WARNING, what)


def older_lineages_do_not_matter(files: MemoryFiles, source: CheckpointSource) -> None:
    read_by(files, 2, {"0/1.compact": log([0, 1]), "0/2": log([2])})
    read_by(files, 1, {"0/7": log([7])})
    assert found(files, cut(files, {"0/1": log([0, 1])}, lineage="lineage-000002"))[0] is Verdict.OK
    assert found(files, source)[0] is Verdict.REFUSED


def newer_lineages_count(files: MemoryFiles, source: CheckpointSource) -> None:
    read_by(files, 2, {"0/1.compact": log([0, 1]), "0/2": log([8])})
    assert found(files, source)[1].startswith("1 of 4 files")


def a_planned_epoch_is_read_again(files: MemoryFiles, source: CheckpointSource) -> None:
    with_planned = cut(files, {"0/2.compact": log([0, 1, 2])})
    assert found(files, with_planned)[1].startswith("all 3 files")
    files.delete(f"{FOLDER}/lineage-000001")  # also where the logs are not known
    files.delete("file:///in/2.json")
    verdict, what = found(files, with_planned)
    assert verdict is Verdict.REFUSED
    assert what.startswith("1 of 1 files")
    assert "not known here" in what


RULES: Final[tuple[Callable[[MemoryFiles, CheckpointSource], None], ...]] = (
    all_there_is_fine,
    what_is_gone_refuses,
    older_lineages_do_not_matter,
    newer_lineages_count,
    a_planned_epoch_is_read_again,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_was_read_after_the_cut_must_be_there(
    files: MemoryFiles, rule: Callable[[MemoryFiles, CheckpointSource], None]
) -> None:
    rule(files, older(files))


BUGS: Final = (
    Mutation("the cut knows what it has planned", preflight_sources._read_after, " if file.batch <= newest", ""),
    Mutation("the cut knows nothing", preflight_sources._read_after, " - before", ""),
    Mutation("the cut has planned nothing", preflight_sources._read_after, "(kept, *later)", "later"),
    Mutation("all lineages count", preflight_sources._later, "names[names.index(snapshot.lineage) :]", "names"),
    Mutation("one lineage counts", preflight_sources._later, "for record in records", "for record in records[:1]"),
    Mutation("what is gone is there", preflight_sources._look, "sorted(names - there)", "()"),
    Mutation("what is gone only warns", preflight_sources._look, " else Verdict.REFUSED", " else Verdict.WARNING"),
    Mutation("nothing is allowed", preflight_sources._look, "Verdict.WARNING if allow_missing_input else ", ""),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    noticed = 0
    with bug.applied():
        for rule in RULES:
            files = MemoryFiles()
            try:
                rule(files, older(files))
            except AssertionError:
                noticed += 1
    assert noticed


def test_nothing_was_read_after_the_newest_cut(files: MemoryFiles) -> None:
    read_by(files, 1, {"0/0": log([0]), "0/1": log([1])})
    source = cut(files, {"0/0": log([0]), "0/1": log([1])})
    assert found(files, source) == (Verdict.OK, "no file was read after the checkpoint")


def test_names_are_compared_as_the_storage_knows_them(files: MemoryFiles) -> None:
    folder = "/in put/50%20 ü"
    read_by(files, 1, {f"0/{number}": log([number], folder) for number in range(3)})
    there(files, 2, folder=folder)
    source = cut(files, {"0/1.compact": log([0, 1], folder)})
    assert found(files, source) == (Verdict.OK, "all 1 files that were read after the checkpoint are there")


def test_a_folder_is_listed_once_for_all_its_files(files: MemoryFiles) -> None:
    count = 3000
    read_by(files, 1, {"0/8.compact": log(range(count)), "0/9": log([count])})
    there(files, *range(2, count - 9))
    looked: list[str] = []

    class Watched(MemoryFiles):
        def list(self, path: str) -> list[str]:
            looked.append(path)
            return files.list(path)

    source = cut(files, {"0/1": log([0, 1])})
    [check] = check_sources(files, lambda path: Watched(), ROOT, source, allow_missing_input=False)
    assert looked == ["file:///in"]
    assert check.found.startswith(f"10 of {count - 1} files")
    assert check.found.endswith("and 5 more")


def test_a_storage_that_cannot_be_looked_at_is_said_to_be_so(files: MemoryFiles) -> None:
    source = older(files)
    read_by(files, 2, {"0/3": b'v1\n{"path":"s3a://bucket/in/a.json","timestamp":1,"batchId":3}'})

    def storage(path: str) -> Files:
        if path.startswith("s3a:"):
            raise StoreUnavailable(path, "list", "there is no file system of this scheme here")
        return files

    [check] = check_sources(files, storage, ROOT, source, allow_missing_input=False)
    assert check.verdict is Verdict.WARNING
    assert "1 files cannot be looked at" in check.found
    assert "no file system of this scheme" in check.found
    files.delete("file:///in/4.json")
    [check] = check_sources(files, storage, ROOT, source, allow_missing_input=False)
    assert check.verdict is Verdict.REFUSED
    assert "1 of 4 files" in check.found
    assert "1 files cannot be looked at" in check.found


def test_another_job_of_that_name_knows_nothing_of_the_cut(files: MemoryFiles) -> None:
    source = older(files)
    read_by(files, 1, {}, query_id="another")
    verdict, what = found(files, source)
    assert verdict is Verdict.WARNING
    assert "not known here" in what


@pytest.mark.parametrize("damaged", [b"v1\n{}", b"v1\nnonsense", b"nothing", b"\xff"])
def test_a_log_that_cannot_be_read_is_not_taken_for_a_good_one(files: MemoryFiles, damaged: bytes) -> None:
    source = older(files)
    read_by(files, 2, {"0/0": damaged})
    verdict, what = found(files, source)
    assert verdict is Verdict.WARNING
    assert what.startswith("it cannot be looked at")


def test_a_log_that_is_compacted_while_it_is_read_is_read_again(files: MemoryFiles) -> None:
    source = older(files)
    live = f"{FOLDER}/lineage-000001/spark/sources/0"

    class Compacting(MemoryFiles):
        """Spark compacts the log after its first listing, and removes what was compacted."""

        def read(self, path: str) -> bytes:
            if path == f"{live}/0" and files.exists(path):
                files.replace(f"{live}/5.compact", log(range(6)))
                there(files, 5)
                for number in range(5):
                    files.delete(f"{live}/{number}")
            return files.read(path)

        def list(self, path: str) -> list[str]:
            return files.list(path)

    [check] = check_sources(Compacting(), lambda path: files, ROOT, source, allow_missing_input=False)
    assert (check.verdict, check.found) == (
        Verdict.OK,
        "all 4 files that were read after the checkpoint are there",
    )


def test_a_log_whose_entries_never_stay_is_given_up(files: MemoryFiles) -> None:
    source = older(files)

    class Vanishing(MemoryFiles):
        def read(self, path: str) -> bytes:
            if "/sources/" in path:
                raise FileNotFoundError(path)
            return files.read(path)

        def list(self, path: str) -> list[str]:
            return files.list(path)

    [check] = check_sources(Vanishing(), lambda path: files, ROOT, source, allow_missing_input=False)
    assert check.verdict is Verdict.WARNING
    assert "it cannot be looked at" in check.found


def test_each_source_is_looked_at_for_itself(files: MemoryFiles) -> None:
    read_by(files, 1, {"0/0": b"v1\n" + KAFKA.encode(), "1/1": log([0, 1]), "1/2": log([2]), "2/0": log([7])})
    offsets = f'{KAFKA}\n{{"logOffset":1}}\n-'
    first, second, third = checked(files, cut(files, {"1/1": log([0, 1])}, offsets))
    assert (first.subject, first.verdict) == ("q/0", Verdict.WARNING)
    assert "failOnDataLoss" in first.way_out
    assert (second.subject, second.verdict) == ("q/1", Verdict.REFUSED)
    assert (third.subject, third.verdict) == ("q/2", Verdict.REFUSED)


def test_a_source_that_wakes_an_operator_has_nothing_to_be_looked_for(files: MemoryFiles) -> None:
    read_by(files, 1, {"0/0": log([0])})
    offsets = '{"logOffset":0}\n{"wake":1,"operator":"op","number":3,"subtasks":[0,2]}\n-'
    checks = checked(files, cut(files, {"0/0": log([0])}, offsets))
    assert [(check.subject, check.verdict) for check in checks] == [("q/0", Verdict.OK), ("q/2", Verdict.OK)]


def test_named_sources_are_found_by_their_names(files: MemoryFiles) -> None:
    read_by(files, 1, {"clicks/1": log([0, 1]), "clicks/2": log([2])})
    source = cut(files, {"clicks/1": log([0, 1])}, f'clicks:{{"logOffset":1}}\nviews:{KAFKA}', version="v2")
    assert [(check.subject, check.verdict) for check in checked(files, source)] == [
        ("q/clicks", Verdict.REFUSED),
        ("q/views", Verdict.WARNING),
    ]


def test_a_cut_before_the_first_epoch_needs_all_that_was_read(files: MemoryFiles) -> None:
    read_by(files, 1, {"0/0": log([0]), "1/0": b"v1\n" + KAFKA.encode()})
    source = cut(files, {}, epoch=-1)
    first, second = checked(files, source)
    assert (first.subject, first.verdict) == ("q/0", Verdict.REFUSED)
    assert (second.subject, second.verdict) == ("q/1", Verdict.WARNING)
    assert "not a file source" in second.found
    files.delete(FOLDER)
    [check] = checked(files, source)
    assert (check.subject, check.verdict) == ("q", Verdict.WARNING)
    assert "not known here" in check.found


def test_a_first_epoch_that_was_planned_is_read_again_in_any_root(files: MemoryFiles) -> None:
    read_by(files, 1, {})
    source = cut(files, {"0/0": log([0])}, epoch=-1)
    files.delete(FOLDER)
    assert found(files, source)[0] is Verdict.REFUSED
    there(files, 0)
    verdict, what = found(files, source)
    assert verdict is Verdict.WARNING
    assert "not known here" in what


def test_what_the_lineages_say_of_themselves_cannot_be_read(files: MemoryFiles) -> None:
    source = older(files)
    files.replace(f"{FOLDER}/lineage-000001/lineage.json", b"nonsense")
    [check] = checked(files, source)
    assert (check.subject, check.verdict) == ("q", Verdict.WARNING)
