from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim, ClaimRecord, claim, newest_claim, previous_may_live
from coord_control.durable.job_folder.holder import Aliveness, Holder, Process, decide
from coord_control.errors import DamagedRecord, StoreUnavailable, UnsupportedFormat
from coord_control.ids import Generation
from tests.patience import SECONDS
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles

FOLDER = "/job/generations"


def holder(*pids: int, host: str = "here", boot: str | None = "b1", namespace: str | None = "n1") -> Holder:
    processes = tuple(Process(pid=pid, started=f"t{pid}") for pid in pids)
    return Holder(host=host, boot=boot, namespace=namespace, processes=processes)


@contextlib.contextmanager
def hanging() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has been stopped, and does not end by itself."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


class TestClaim:
    def test_generations_count_from_1_and_know_their_predecessor(self, files: MemoryFiles) -> None:
        first = claim(files, FOLDER, holder(10, 11))
        second = claim(files, FOLDER, holder(20))
        assert (first.generation, first.previous) == (1, None)
        assert second.generation == 2
        assert second.previous is not None
        assert (second.previous.generation, second.previous.holder) == (1, holder(10, 11))

    def test_a_newer_claim_ends_the_older_ones(self, files: MemoryFiles) -> None:
        first = claim(files, FOLDER, holder(1))
        assert first.is_current()
        second = claim(files, FOLDER, holder(2))
        assert (first.is_current(), second.is_current()) == (False, True)

    def test_a_fenced_driver_says_who_has_fenced_it(self, files: MemoryFiles) -> None:
        first = claim(files, FOLDER, holder(1))
        claim(files, FOLDER, holder(2))
        claim(files, FOLDER, holder(7, 8, host="there"))
        error = first.fenced("flights")
        assert (error.generation, error.newer) == (1, 3)
        said = r"process 7 on there \(since .*\) has claimed generation 3; .*coordctl generations flights"
        assert re.search(said, str(error))

    def test_drivers_of_one_supervisor_know_each_other(self, files: MemoryFiles) -> None:
        supervised = holder(1).model_copy(update={"supervisor": "s"})
        for each in (supervised, supervised.model_copy(update={"supervisor": "t"}), holder(3), supervised):
            newest = claim(files, FOLDER, each)
        assert [newest.has_same_supervisor(Generation(each)) for each in (1, 2, 3)] == [True, False, False]
        assert not claim(files, FOLDER, holder(4)).has_same_supervisor(Generation(3)), "neither has one"
        files.replace(f"{FOLDER}/1.json", b"damaged")
        assert [newest.has_same_supervisor(Generation(each)) for each in (1, 17)] == [False, False]

    def test_a_driver_is_fenced_also_when_nobody_can_say_by_whom(self, files: MemoryFiles) -> None:
        first = claim(files, FOLDER, holder(1))
        files.create(f"{FOLDER}/2.json", b"damaged")
        assert "another driver has claimed a newer generation" in str(first.fenced("flights"))

    def test_an_older_driver_stays_fenced_when_claims_have_been_forgotten(self, files: MemoryFiles) -> None:
        claims = [claim(files, FOLDER, holder(number)) for number in range(30)]
        assert [each.is_current() for each in claims] == [False] * 29 + [True]

    def test_only_the_last_claims_are_kept(self, files: MemoryFiles) -> None:
        for number in range(12):
            claim(files, FOLDER, holder(number)).release()
        claim(files, FOLDER, holder(99))
        kept = {int(name.split(".")[0]) for name in files.list(FOLDER)}
        assert kept == set(range(4, 14))

    def test_a_crash_at_any_moment_of_a_claim_leaves_at_most_one_current_driver(self) -> None:
        for point in itertools.count(1):
            files = MemoryFiles(torn_writes=True)
            claims = [claim(files, FOLDER, holder(number)) for number in range(11)]
            try:
                claim(files.seen_by(CrashAt(point)), FOLDER, holder(50))
            except Crash:
                assert not any(each.is_current() for each in claims[:-1])
                claims.append(claim(files, FOLDER, holder(51)))
                assert [each.generation for each in claims if each.is_current()] == [claims[-1].generation]
                assert claims[-1].generation > 11
            else:
                assert point > 10
                break

    def test_a_driver_that_died_while_claiming_has_used_up_its_number_or_not(self) -> None:
        # Its announcement alone uses it up: what is still on its way could be written later.
        for point, expected in ((1, 1), (2, 2), (3, 2), (4, 2)):
            files = MemoryFiles(torn_writes=True)
            with pytest.raises(Crash):
                claim(files.seen_by(CrashAt(point)), FOLDER, holder(1))
            assert claim(files, FOLDER, holder(2)).generation == expected

    @pytest.mark.parametrize("kind", ["memory", "local"])
    def test_racing_drivers_get_different_generations_and_only_the_newest_is_current(
        self, kind: str, tmp_path: object
    ) -> None:
        files: Files = MemoryFiles() if kind == "memory" else LocalFiles()
        folder = f"{tmp_path}/generations"
        barrier = threading.Barrier(2)
        claims: list[Claim] = []

        def race() -> None:
            barrier.wait()
            claims.extend(claim(files, folder, holder(1)) for _ in range(10))

        threads = [threading.Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [each.generation for each in claims]
        assert len(set(numbers)) == 20  # a number that both have wanted at the same time may belong to nobody
        assert [each.generation for each in claims if each.is_current()] == [max(numbers)]

    def test_the_winner_of_a_race_is_the_losers_predecessor(self, files: MemoryFiles) -> None:
        class Overtake:
            """Lets another driver claim just before our file is written."""

            done = False

            def before_write(self, path: str) -> None:
                if not self.done:
                    self.done = True
                    claim(files, FOLDER, holder(77))

            def after_write(self, path: str) -> None:
                pass

        mine = claim(files.seen_by(Overtake()), FOLDER, holder(1))
        assert mine.generation == 2
        assert mine.previous is not None
        assert mine.previous.holder == holder(77)

    def test_release_can_be_called_twice(self, files: MemoryFiles) -> None:
        first = claim(files, FOLDER, holder(1))
        first.release()
        first.release()
        assert claim(files, FOLDER, holder(2)).is_previous_released()

    def test_the_content_is_readable_by_people(self, files: MemoryFiles) -> None:
        claim(files, FOLDER, holder(10))
        content = json.loads(files.read(f"{FOLDER}/1.json"))
        assert (content["format_version"], content["generation"]) == (2, 1)
        assert content["holder"]["host"] == "here"


class Between:
    """Lets something happen before, or after, a file is written: once."""

    def __init__(self, name: str, moment: str, call: Callable[[], object]) -> None:
        self.name, self.moment, self.call = name, moment, call
        self.done = False

    def before_write(self, path: str) -> None:
        self._meet("before", path)

    def after_write(self, path: str) -> None:
        self._meet("after", path)

    def _meet(self, moment: str, path: str) -> None:
        if not self.done and moment == self.moment and path == f"{FOLDER}/{self.name}":
            self.done = True
            self.call()


class TestCheckThenPut:
    """A storage whose create-if-absent looks first and writes later."""

    def disk(self) -> MemoryFiles:
        return MemoryFiles(creates_atomically=False)

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_two_drivers_that_have_both_looked_never_own_one_generation(self, moment: str) -> None:
        disk, rivals = self.disk(), list[Claim]()
        first = Between("1.json", moment, lambda: rivals.append(claim(disk, FOLDER, holder(2))))
        mine = claim(disk.seen_by(first), FOLDER, holder(1))
        [rival] = rivals
        assert mine.generation > rival.generation
        assert (mine.is_current(), rival.is_current()) == (True, False)

    def test_a_claim_that_arrives_after_the_rivals_is_not_shared(self) -> None:
        """Both have looked; the second one has written and read back before the first one's content arrives."""
        disk = self.disk()
        looked, written = threading.Event(), threading.Event()

        class Slow:
            def before_write(self, path: str) -> None:
                if path == f"{FOLDER}/1.json":
                    looked.set()
                    assert written.wait(SECONDS)

            def after_write(self, path: str) -> None:
                pass

        slow: list[Claim] = []
        thread = threading.Thread(target=lambda: slow.append(claim(disk.seen_by(Slow()), FOLDER, holder(1))))
        thread.start()
        assert looked.wait(SECONDS)
        fast = claim(disk, FOLDER, holder(2))
        assert fast.is_current()
        written.set()
        thread.join(30)
        assert slow[0].generation > fast.generation
        assert (slow[0].is_current(), fast.is_current()) == (True, False)

    def test_many_drivers_that_claim_at_once_own_a_generation_each(self) -> None:
        class Slow:
            def before_write(self, path: str) -> None:
                time.sleep(random.uniform(0, 0.003))

            def after_write(self, path: str) -> None:
                pass

        disk, claims, problems = self.disk(), list[Claim](), list[str]()

        def race(number: int) -> None:
            for _ in range(3):
                mine = claim(disk.seen_by(Slow()), FOLDER, holder(number))
                claims.append(mine)
                # What it does now rests on being the only one.
                if mine.is_current() and any(o.is_current() for o in list(claims) if o is not mine):
                    if mine.is_current():
                        problems.append(f"generation {mine.generation} is not the only one")

        threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert len({each.generation for each in claims}) == len(claims) == 24
        newest = max(each.generation for each in claims)
        assert [each.generation for each in claims if each.is_current()] == [newest]

    def test_processes_that_claim_at_once_own_a_generation_each(self, tmp_path: Path) -> None:
        script = (
            "import sys; from coord_control.durable.files.filesystem import LocalFiles\n"
            "from coord_control.durable.job_folder import generations\n"
            "from coord_control.durable.job_folder.holder import Holder\n"
            "from coord_control.errors import AlreadyExists\n"
            "class Files(LocalFiles):\n"
            "    def create(self, path, data):\n"
            "        if self.exists(path): raise AlreadyExists(path)\n"
            "        self.replace(path, data)\n"
            "sys.stdin.readline()\n"
            "for _ in range(5):\n"
            "    print(generations.claim(Files(), sys.argv[1], Holder.of([])).generation)\n"
        )
        folder = str(tmp_path / "generations")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        owned = [int(line) for process in processes for line in process.communicate()[0].split()]
        assert len(set(owned)) == len(owned) == 15

    def test_a_claim_that_was_overwritten_before_it_was_read_back_is_not_owned(self) -> None:
        disk, other = self.disk(), MemoryFiles()
        claim(other, FOLDER, holder(2))
        late = Between("1.json", "after", lambda: disk.replace(f"{FOLDER}/1.json", other.read(f"{FOLDER}/1.json")))
        mine = claim(disk.seen_by(late), FOLDER, holder(1))
        assert (mine.generation, mine.is_current()) == (2, True)

    def test_a_number_that_a_dead_driver_wanted_is_left_alone(self) -> None:
        disk = self.disk()
        with pytest.raises(Crash):
            claim(disk.seen_by(CrashAt(2)), FOLDER, holder(1))
        # Its claim may still be on its way to the storage.
        assert claim(disk, FOLDER, holder(2)).generation == 2

    def test_a_number_that_a_driver_did_not_get_is_not_its_predecessor(self) -> None:
        """Bug: it waited for itself, and took itself for a driver that it had fenced off."""
        disk = self.disk()
        before = claim(disk, FOLDER, holder(9))
        with pytest.raises(Crash):
            claim(disk.seen_by(CrashAt(2)), FOLDER, holder(1))  # it has announced 2
        mine = claim(disk, FOLDER, holder(2))
        assert mine.previous is not None
        assert (mine.generation, mine.previous.generation) == (3, before.generation)
        assert mine.previous.holder == holder(9)


class TestContent:
    """Whether a driver is current is decided by the content of its claim."""

    def test_a_claim_of_another_driver_under_the_same_number_fences(self, files: MemoryFiles) -> None:
        mine = claim(files, FOLDER, holder(1))
        other = MemoryFiles()
        claim(other, FOLDER, holder(2))
        files.replace(f"{FOLDER}/1.json", other.read(f"{FOLDER}/1.json"))
        assert not mine.is_current()

    def test_a_driver_is_fenced_by_a_job_that_was_removed_and_begun_again(self, files: MemoryFiles) -> None:
        mine = claim(files, FOLDER, holder(1))
        files.delete(FOLDER)
        assert not mine.is_current()
        assert claim(files, FOLDER, holder(1)).generation == 1
        assert not mine.is_current()

    def test_the_look_that_fences_is_not_answered_from_a_negative_cache(self, files: MemoryFiles) -> None:
        """NFS: a name that was not there is not there for up to a minute; a file that is opened is the server's."""

        class Cached(MemoryFiles):
            def exists(self, path: str) -> bool:
                return False

        seen = Cached()
        seen._disk = files._disk
        mine = claim(seen, FOLDER, holder(1))
        assert mine.is_current()
        claim(files, FOLDER, holder(2))
        assert not mine.is_current()

    def test_a_superseded_claim_says_by_whom_and_still_tells_its_story(self, files: MemoryFiles) -> None:
        claim(files, FOLDER, holder(1))
        claim(files, FOLDER, holder(2))
        record = ClaimRecord.model_validate_json(files.read(f"{FOLDER}/1.json"))
        assert (record.superseded_by, record.holder) == (2, holder(1))

    def test_a_claim_of_the_first_format_is_superseded_as_well(self, files: MemoryFiles) -> None:
        claim(files, FOLDER, holder(1))
        content = json.loads(files.read(f"{FOLDER}/1.json"))
        del content["token"], content["superseded_by"]
        files.replace(f"{FOLDER}/1.json", json.dumps(content | {"format_version": 1}).encode())
        second = claim(files, FOLDER, holder(2))
        assert second.previous is not None
        assert (second.generation, second.previous.holder) == (2, holder(1))

    def test_a_storage_that_cannot_say_is_no_answer(self, files: MemoryFiles) -> None:
        class Down(MemoryFiles):
            def read(self, path: str) -> bytes:
                raise StoreUnavailable(path, "read", "down")

        mine = claim(files, FOLDER, holder(1))
        mine._files = Down()
        with pytest.raises(StoreUnavailable):
            mine.is_current()


def test_equal_drivers_of_one_moment_are_told_apart(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers, say, which all count their processes from 1."""
    moment = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda zone: moment), UTC=datetime.UTC)
    monkeypatch.setattr(generations, "datetime", clock)
    mine = claim(files, FOLDER, holder(1))
    files.delete(FOLDER)
    theirs = claim(files, FOLDER, holder(1))
    assert (mine.is_current(), theirs.is_current()) == (False, True)


class TestAbove:
    """What was restored from elsewhere has seen the barrier ids of a higher generation."""

    def test_generations_are_claimed_one_after_the_other_until_one_is_above(self, files: MemoryFiles) -> None:
        plain = claim(files, FOLDER, holder(1))
        mine = claim(files, FOLDER, holder(2), above=Generation(4))
        assert mine.generation == 5
        # Nobody is left out: an older driver looks for the next number.
        assert not plain.is_current()
        assert files.list(FOLDER) == [f"{number}.json" for number in range(1, 6)]
        assert mine.previous is not None
        assert mine.previous.holder == holder(1)

    def test_it_is_the_next_one_when_that_is_above_already(self, files: MemoryFiles) -> None:
        for pid in range(1, 4):
            claim(files, FOLDER, holder(pid))
        assert claim(files, FOLDER, holder(9), above=Generation(3)).generation == 4

    def test_a_new_job_has_nobody_before_it(self, files: MemoryFiles) -> None:
        mine = claim(files, FOLDER, holder(1), above=Generation(30))
        assert (mine.generation, mine.previous) == (31, None)
        assert mine.is_current()

    def test_who_comes_in_between_is_before_us(self, files: MemoryFiles) -> None:
        class Overtake:
            def before_write(self, path: str) -> None:
                if path.endswith("/3.json") and not files.exists(path):
                    claim(files, FOLDER, holder(77))

            def after_write(self, path: str) -> None:
                pass

        mine = claim(files.seen_by(Overtake()), FOLDER, holder(1), above=Generation(5))
        assert mine.generation == 6
        assert mine.previous is not None
        assert mine.previous.holder == holder(77)

    def test_the_newest_claim_is_told_without_claiming(self, files: MemoryFiles) -> None:
        assert newest_claim(files, FOLDER) is None
        mine = claim(files, FOLDER, holder(1))
        claimed = newest_claim(files, FOLDER)
        assert claimed is not None
        assert (claimed[0].generation, claimed[0].holder, claimed[1]) == (1, holder(1), False)
        mine.release()
        claimed = newest_claim(files, FOLDER)
        assert claimed is not None
        assert claimed[1]


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format_version": 1}', b'{"format_version": "x"}'])
    def test_a_damaged_claim_is_named_and_nothing_is_claimed(self, files: MemoryFiles, content: bytes) -> None:
        claim(files, FOLDER, holder(1))
        files.replace(f"{FOLDER}/1.json", content)
        with pytest.raises(DamagedRecord, match=r"/job/generations/1\.json"):
            claim(files, FOLDER, holder(2))
        assert files.list(FOLDER) == ["1.json"]

    def test_an_exchanged_claim_is_noticed(self, files: MemoryFiles) -> None:
        claim(files, FOLDER, holder(1))
        claim(files, FOLDER, holder(2))
        files.replace(f"{FOLDER}/2.json", files.read(f"{FOLDER}/1.json"))
        with pytest.raises(DamagedRecord, match="it is the claim of generation 1"):
            claim(files, FOLDER, holder(3))

    def test_a_claim_of_a_newer_release_is_refused(self, files: MemoryFiles) -> None:
        files.create(f"{FOLDER}/4.json", b'{"format_version": 3, "new": true}')
        with pytest.raises(UnsupportedFormat, match="has format version 3"):
            claim(files, FOLDER, holder(1))


class TestDecide:
    """Every fact by itself; `here` holds the process ids that exist now."""

    def test_a_released_one_is_dead_wherever_it_was(self) -> None:
        assert decide(holder(1, host="far"), is_released=True, here=holder(1)) is Aliveness.DEAD

    @pytest.mark.parametrize("alive", [(1,), (2,), (1, 2)])
    def test_one_process_is_enough_to_be_alive(self, alive: tuple[int, ...]) -> None:
        assert decide(holder(1, 2), is_released=False, here=holder(*alive)) is Aliveness.ALIVE

    def test_without_any_it_is_dead(self) -> None:
        assert decide(holder(1, 2), is_released=False, here=holder()) is Aliveness.DEAD

    def test_a_process_id_that_another_process_has_now_does_not_count(self) -> None:
        here = Holder(host="here", boot="b1", namespace="n1", processes=(Process(pid=1, started="later"),))
        assert decide(holder(1), is_released=False, here=here) is Aliveness.DEAD

    def test_without_a_start_time_it_may_be_the_same(self) -> None:
        here = Holder(host="here", boot="b1", namespace="n1", processes=(Process(pid=1, started=None),))
        assert decide(holder(1), is_released=False, here=here) is Aliveness.ALIVE
        assert decide(here, is_released=False, here=holder(1)) is Aliveness.ALIVE

    @pytest.mark.parametrize(
        "previous",
        [holder(1, host="far"), holder(1, boot="b0"), holder(1, namespace="n2"), holder(1, boot=None)],
        ids=["host", "boot", "container", "not told"],
    )
    def test_elsewhere_nothing_is_known(self, previous: Holder) -> None:
        assert decide(previous, is_released=False, here=holder()) is Aliveness.UNKNOWN


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="tells what Linux knows about processes")
class TestRealProcesses:
    def test_a_running_process_is_alive_and_an_ended_one_is_dead(self, files: MemoryFiles) -> None:
        command = [sys.executable, "-c", "input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            claim(files, FOLDER, Holder.of([process.pid]))
            mine = claim(files, FOLDER, holder(1))
            assert previous_may_live(mine) is Aliveness.ALIVE
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            # It has ended now but keeps its id, until its parent asks.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert previous_may_live(mine) is Aliveness.DEAD
        assert previous_may_live(mine) is Aliveness.DEAD

    def test_a_driver_that_was_replaced_and_hangs_is_found_however_long_ago_that_was(self, files: MemoryFiles) -> None:
        with hanging() as process:
            claim(files, FOLDER, holder(2))
            claim(files, FOLDER, Holder.of([process.pid, 2**22 + 1]))
            latest = claim(files, FOLDER, Holder.of([os.getpid()]))
            assert latest.alive_before() == (2, [process.pid])
            latest.release()
            for _ in range(12):  # older claims are forgotten
                latest = claim(files, FOLDER, holder(1))
            assert latest.alive_before() == (2, [process.pid])
            names = files.list(FOLDER)
            assert "2.json" in names
            assert "1.json" not in names
        assert latest.alive_before() is None
        claim(files, FOLDER, holder(1))
        assert "2.json" not in files.list(FOLDER)

    def test_who_runs_no_query_any_more_does_not_count_as_alive(self, files: MemoryFiles) -> None:
        with hanging() as process:
            other = Holder.of([process.pid])
            claim(files, FOLDER, other, look_at=lambda record, is_released: None)  # a command on the storage
            claim(files, FOLDER, other).release()
            claim(files, FOLDER, Holder.of([os.getpid()]))  # this process, in which an earlier job has ended
            claim(files, FOLDER, other.model_copy(update={"boot": "another"}))
            mine = claim(files, FOLDER, Holder.of([os.getpid()]))
            assert mine.alive_before() is None
            files.replace(f"{FOLDER}/3.json", b"damaged")
            assert mine.alive_before() is None

    def test_the_first_driver_has_nobody_before_it(self, files: MemoryFiles) -> None:
        assert previous_may_live(claim(files, FOLDER, holder(1))) is Aliveness.DEAD

    def test_this_process_can_be_told_from_a_later_one(self) -> None:
        me = Holder.of([os.getpid()])
        assert me.boot
        assert me.namespace
        assert me.processes[0].started == Holder.of([os.getpid()]).processes[0].started
        assert me.processes[0].started != Holder.of([1]).processes[0].started or os.getpid() == 1
