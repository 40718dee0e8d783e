from __future__ import annotations

import pytest

from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles


def test_a_crash_before_a_write_leaves_nothing_and_one_after_it_leaves_all() -> None:
    for point, content in ((1, []), (2, ["/a"])):
        files = MemoryFiles()
        with pytest.raises(Crash):
            files.seen_by(CrashAt(point)).create("/a", b"data")
        assert files.paths() == content
        assert files.residue() == []


def test_a_torn_write_leaves_half_a_temporary_file_that_nobody_lists() -> None:
    files = MemoryFiles(torn_writes=True)
    with pytest.raises(Crash):
        files.seen_by(CrashAt(1)).create("/folder/a", b"data")
    assert files.residue() == ["/folder/.a.tmp"]
    assert files.read("/folder/.a.tmp") == b"da"
    assert files.list("/folder") == []


def test_deleting_a_folder_can_stop_half_way() -> None:
    files = MemoryFiles()
    for name in "abc":
        files.create(f"/folder/{name}", b"x")
    with pytest.raises(Crash):
        files.seen_by(CrashAt(3)).delete("/folder")
    assert files.paths() == ["/folder/a", "/folder/b"]


def test_a_run_without_a_crash_counts_the_points() -> None:
    faults = CrashAt()
    files = MemoryFiles(faults)
    files.create("/a", b"1")
    files.replace("/a", b"2")
    files.delete("/a")
    assert faults.passed == 6


def test_a_copy_is_independent_and_a_view_is_not() -> None:
    files = MemoryFiles()
    files.create("/a", b"1")
    copy, view = files.copy(), files.seen_by(None)
    view.replace("/a", b"2")
    assert (files.read("/a"), copy.read("/a")) == (b"2", b"1")


def test_damage_flips_one_bit_or_cuts() -> None:
    files = MemoryFiles()
    files.create("/a", b"\x00\x00")
    files.damage("/a", flip_bit=9)
    assert files.read("/a") == b"\x00\x02"
    files.damage("/a", keep=1)
    assert files.read("/a") == b"\x00"
