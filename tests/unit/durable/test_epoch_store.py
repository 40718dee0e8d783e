from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.epochs.records_codec import FORMAT_VERSION
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import AlreadyExists, DamagedRecord, MissingRecord, StoreUnavailable, UnsupportedFormat
from coord_control.ids import NO_EPOCH, Epoch, Generation
from coord_control.protocol.liveness import live
from coord_control.protocol.records import Record
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.epoch_records import ack, begin, epoch_batches, started

FOLDER = "/epochs"


def store(
    files: MemoryFiles, generation: int = 1, *, retain: int = 100, segments: int = 256, size: int = 1 << 24
) -> EpochStore:
    return EpochStore(files, FOLDER, Generation(generation), retain, max_segments=segments, min_compact_bytes=size)


def opened(files: MemoryFiles, generation: int = 1, *, retain: int = 100, segments: int = 256) -> EpochStore:
    made = store(files, generation, retain=retain, segments=segments)
    made.open()
    return made


class TestWhatIsWritten:
    def test_an_idle_query_of_the_first_driver_writes_nothing(self, files: MemoryFiles) -> None:
        first = opened(files)
        first.append([])
        first.committed(Epoch(50))
        first.compact_if_due()
        assert first.read() == []
        assert files.paths() == []

    def test_the_first_append_is_the_base_and_each_further_one_a_segment(self, files: MemoryFiles) -> None:
        first = opened(files)
        first.append([begin(0)])
        first.append([ack(0), ack(0, 1)])
        assert files.paths() == ["/epochs/1/0000000000.base", "/epochs/1/0000000001.log"]
        assert first.read() == [begin(0), ack(0), ack(0, 1)]

    def test_a_later_generation_writes_a_base_even_when_there_is_nothing_to_copy(self, files: MemoryFiles) -> None:
        assert store(files, 2).open() == []
        assert files.paths() == ["/epochs/2/0000000000.base"]

    def test_a_later_generation_copies_what_is_live_and_removes_the_older(self, files: MemoryFiles) -> None:
        first = opened(files)
        first.append([begin(0), ack(0)])
        first.append([ack(1), started(0)])
        assert store(files, 4).open() == [begin(0), ack(0)]
        assert files.list(FOLDER) == ["4"]
        assert store(files, 5).open() == [begin(0), ack(0)]

    def test_opening_again_writes_nothing_and_goes_on(self, files: MemoryFiles) -> None:
        opened(files).append([begin(0)])
        second = opened(files, 2)
        second.append([ack(0)])
        paths = files.paths()
        again = store(files, 2)
        assert again.open() == [begin(0), ack(0)]
        assert files.paths() == paths
        again.append([ack(1)])
        assert again.read() == second.read() == [begin(0), ack(0), ack(1)]

    def test_two_drivers_of_one_generation_cannot_both_write(self, files: MemoryFiles) -> None:
        first, second = opened(files, 2), opened(files, 2)
        first.append([begin(0)])
        with pytest.raises(AlreadyExists):
            second.append([begin(1)])

    def test_it_works_on_a_real_disk(self, tmp_path: Path) -> None:
        for generation in range(1, 4):
            disk = EpochStore(LocalFiles(), str(tmp_path), Generation(generation), 100, max_segments=2)
            assert len(disk.open()) == 3 * 4 * (generation - 1)
            for epoch in range(4 * (generation - 1), 4 * generation):
                for batch in epoch_batches(epoch):
                    disk.append(batch)
        assert [path.name for path in tmp_path.iterdir()] == ["3"]


class TestFencing:
    def test_what_an_older_driver_writes_later_is_never_read(self, files: MemoryFiles) -> None:
        zombie = opened(files)
        zombie.append([begin(0)])
        second = opened(files, 2)
        zombie.append([ack(0)])
        second.append([begin(1)])
        assert second.read() == [begin(0), begin(1)]
        assert store(files, 3).open() == [begin(0), begin(1)]
        assert files.list(FOLDER) == ["3"]

    def test_not_even_when_neither_driver_had_written_before(self, files: MemoryFiles) -> None:
        zombie = opened(files)
        opened(files, 2)
        zombie.append([begin(0)])
        assert store(files, 3).open() == []

    def test_the_folder_of_a_newer_driver_is_left_alone(self, files: MemoryFiles) -> None:
        opened(files, 3).append([begin(0)])
        assert store(files, 2).open() == []
        assert files.list(FOLDER) == ["2", "3"]

    def test_a_generation_that_died_before_its_base_is_passed_over(self, files: MemoryFiles) -> None:
        opened(files).append([begin(0)])
        files.make_dirs("/epochs/2")
        assert store(files, 3).open() == [begin(0)]
        assert files.list(FOLDER) == ["3"]

    def test_foreign_names_are_not_touched(self, files: MemoryFiles) -> None:
        files.create("/epochs/README", b"mine")
        files.create("/epochs/01/0000000000.base", b"mine")
        opened(files, 2)
        assert files.list(FOLDER) == ["01", "2", "README"]


class TestCompaction:
    def test_many_segments_become_a_base(self, files: MemoryFiles) -> None:
        first = opened(files, segments=3)
        for epoch in range(4):
            first.append([ack(epoch)])
        assert len(files.paths()) == 4
        first.append([ack(4)])
        assert files.paths() == ["/epochs/1/0000000004.base"]
        first.append([ack(5)])
        assert files.paths() == ["/epochs/1/0000000004.base", "/epochs/1/0000000005.log"]
        assert first.read() == [ack(epoch) for epoch in range(6)]

    def test_a_large_base_is_not_rewritten_for_a_few_segments(self, files: MemoryFiles) -> None:
        first = opened(files, segments=3)
        first.append([ack(0, size=9 * (32 << 10))])
        for epoch in range(1, 10):
            first.append([ack(epoch)])
        assert len(files.paths()) == 10
        first.append([ack(10)])
        assert files.paths() == ["/epochs/1/0000000010.base"]

    def test_many_bytes_become_a_base_when_they_are_twice_the_base(self, files: MemoryFiles) -> None:
        first = store(files, size=1000)
        first.open()
        bases = []
        for epoch in range(40):
            first.append([ack(epoch, size=400)])
            if files.paths()[-1].endswith(".base"):
                bases.append(epoch)
        # Three more are above 1000 bytes; from then on the base becomes three times as large each time.
        assert bases == [0, 3, 11, 33]

    def test_only_live_records_go_into_it(self, files: MemoryFiles) -> None:
        first = opened(files, retain=2, segments=5)
        records: list[Record] = []
        for epoch in range(20):
            for batch in epoch_batches(epoch):
                first.append(batch)
                records += batch
            first.committed(Epoch(epoch))
        assert first.read() == live(records, Epoch(19), 2)
        assert len(first.read()) < 20
        assert first.complete_from > 10

    def test_committed_never_falls(self, files: MemoryFiles) -> None:
        first = opened(files, retain=2)
        first.append([begin(epoch) for epoch in range(11)])
        first.committed(Epoch(10))
        first.committed(Epoch(4))
        assert first.read() == [begin(epoch) for epoch in (7, 8, 9, 10)]

    def test_what_is_known_to_be_committed_before_opening_makes_the_copy_smaller(self, files: MemoryFiles) -> None:
        opened(files).append([begin(epoch) for epoch in range(10)])
        second = store(files, 2, retain=2)
        second.committed(Epoch(9))
        assert second.open() == [begin(epoch) for epoch in (6, 7, 8, 9)]

    def test_a_damaged_log_is_not_compacted(self, files: MemoryFiles) -> None:
        first = opened(files, segments=2)
        for epoch in range(3):
            first.append([ack(epoch)])
        files.damage("/epochs/1/0000000001.log", flip_bit=300)
        before = files.paths()
        with pytest.raises(DamagedRecord, match=r"/epochs/1/0000000001\.log"):
            first.append([ack(3)])
        assert files.paths() == [*before, "/epochs/1/0000000003.log"]


class TestSetBack:
    """Spark's checkpoint is set back by hand: allowed as far as Spark's own files go."""

    def test_nothing_is_dropped_before_anything_is_committed(self, files: MemoryFiles) -> None:
        first = opened(files, retain=0)
        assert first.complete_from == NO_EPOCH
        first.append([started(-1), begin(0)])
        assert first.read() == [begin(0)]

    def test_a_run_from_before_what_is_complete_is_refused_also_by_later_drivers(self, files: MemoryFiles) -> None:
        first = opened(files, retain=5, segments=1)
        first.committed(Epoch(20))
        for epoch in range(19, 22):
            first.append([ack(epoch)])
        assert first.complete_from == 14
        second = opened(files, 2, retain=500)
        assert second.complete_from == 14
        second.append([started(14)])
        paths = files.paths()
        with pytest.raises(MissingRecord, match="checkpoint is at epoch 13, and records are complete from epoch 14 on"):
            second.append([started(13)])
        assert files.paths() == paths


class TestDamage:
    @pytest.fixture
    def log(self, files: MemoryFiles) -> MemoryFiles:
        first = opened(files)
        for epoch in range(4):
            first.append([ack(epoch)])
        return files

    @pytest.mark.parametrize("name", ["0000000000.base", "0000000001.log", "0000000003.log"])
    def test_a_damaged_file_is_named_and_nothing_is_written(self, log: MemoryFiles, name: str) -> None:
        log.damage(f"/epochs/1/{name}", keep=50)
        before = log.paths()
        with pytest.raises(DamagedRecord, match=f"/epochs/1/{name} is damaged"):
            store(log, 2).open()
        assert log.paths() == before

    @pytest.mark.parametrize("name", ["0000000001.log", "0000000002.log"])
    def test_a_missing_segment_is_named(self, log: MemoryFiles, name: str) -> None:
        log.delete(f"/epochs/1/{name}")
        with pytest.raises(MissingRecord, match=f"/epochs/1/{name} is missing"):
            store(log, 2).open()

    @pytest.mark.parametrize("generation", [1, 2])
    def test_a_missing_base_is_named(self, log: MemoryFiles, generation: int) -> None:
        log.delete("/epochs/1/0000000000.base")
        with pytest.raises(MissingRecord, match=r"/epochs/1/\*\.base before 0000000001\.log is missing"):
            store(log, generation).open()

    def test_a_missing_base_is_not_made_up_for_by_an_older_generation(self, log: MemoryFiles) -> None:
        log.create("/epochs/2/0000000001.log", log.read("/epochs/1/0000000001.log"))
        with pytest.raises(MissingRecord, match="/epochs/2/"):
            store(log, 3).open()

    def test_a_driver_also_misses_its_own_last_file(self, files: MemoryFiles) -> None:
        first = opened(files)
        first.append([ack(0)])
        first.append([ack(1)])
        files.delete("/epochs/1/0000000001.log")
        for look in (first.read, first.open):
            with pytest.raises(MissingRecord, match=r"0000000001\.log"):
                look()
        files.delete("/epochs/1/0000000000.base")
        with pytest.raises(MissingRecord, match=r"0000000000\.base"):
            first.read()

    def test_exchanged_files_are_noticed(self, log: MemoryFiles) -> None:
        content = log.read("/epochs/1/0000000002.log")
        log.replace("/epochs/1/0000000001.log", content)
        with pytest.raises(DamagedRecord, match=r"0000000001\.log is damaged: it is the segment 2 of generation 1"):
            store(log, 2).open()

    def test_a_newer_format_is_refused(self, log: MemoryFiles) -> None:
        log.damage("/epochs/1/0000000001.log", flip_bit=8 * 9 + 6)
        newer = FORMAT_VERSION + 64
        with pytest.raises(UnsupportedFormat, match=rf"0000000001\.log has format version {newer}"):
            store(log, 2).open()


class FailOnce:
    """The storage reports an error once; the write has happened or not."""

    def __init__(self, *, before: bool) -> None:
        self._before = before
        self._armed = True

    def before_write(self, path: str) -> None:
        if self._before:
            self._fail(path)

    def after_write(self, path: str) -> None:
        if not self._before:
            self._fail(path)

    def _fail(self, path: str) -> None:
        if self._armed:
            self._armed = False
            raise StoreUnavailable(path, "create", "connection lost")


class TestDoubtfulWrites:
    @pytest.mark.parametrize("before", [True, False])
    def test_appending_once_more_is_harmless(self, files: MemoryFiles, before: bool) -> None:
        opened(files).append([begin(0)])
        again = EpochStore(files.seen_by(FailOnce(before=before)), FOLDER, Generation(1), 100)
        again.open()
        for _ in range(2):
            try:
                again.append([ack(0)])
                break
            except StoreUnavailable:
                continue
        again.append([ack(1)])
        assert again.read() == [begin(0), ack(0), ack(1)]
        assert store(files, 2).open() == [begin(0), ack(0), ack(1)]

    @pytest.mark.parametrize("before", [True, False])
    def test_reading_tells_what_has_happened(self, files: MemoryFiles, before: bool) -> None:
        first = EpochStore(files.seen_by(FailOnce(before=before)), FOLDER, Generation(1), 100)
        first.open()
        with pytest.raises(StoreUnavailable):
            first.append([begin(0)])
        expected = [] if before else [begin(0)]
        assert first.read() == expected
        first.append([ack(0)])
        assert first.read() == [*expected, ack(0)]

    @pytest.mark.parametrize("before", [True, False])
    def test_opening_can_be_tried_again(self, files: MemoryFiles, before: bool) -> None:
        opened(files).append([begin(0)])
        second = EpochStore(files.seen_by(FailOnce(before=before)), FOLDER, Generation(2), 100)
        with pytest.raises(StoreUnavailable):
            second.open()
        assert second.open() == [begin(0)]
        assert files.paths() == ["/epochs/2/0000000000.base"]

    @pytest.mark.parametrize("before", [True, False])
    def test_compaction_can_be_tried_again(self, files: MemoryFiles, before: bool) -> None:
        first = opened(files)
        for epoch in range(4):
            first.append([ack(epoch)])
        again = EpochStore(files.seen_by(FailOnce(before=before)), FOLDER, Generation(1), 100, max_segments=2)
        again.open()
        with pytest.raises(StoreUnavailable):
            again.compact_if_due()
        again.compact_if_due()
        assert files.paths() == ["/epochs/1/0000000003.base"]
        again.append([ack(4)])
        assert again.read() == [ack(epoch) for epoch in range(5)]
