"""Two drivers of one job that start at the same moment, again and again."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.generations import Claim, claim
from coord_control.durable.job_folder.holder import Holder
from tests.patience import SECONDS

__all__ = ["check_owners"]


def check_owners(files: Files, root: str, rounds: int) -> None:
    """Let two drivers claim each of several jobs at once: they get different generations, and one owns the job."""

    def start(folder: str, barrier: threading.Barrier) -> Claim:
        barrier.wait(SECONDS)
        return claim(files, folder, Holder.of([os.getpid()]))

    def start_both(number: int) -> list[Claim]:
        folder, barrier = join(root, str(number), "generations"), threading.Barrier(2)
        with ThreadPoolExecutor(2) as drivers:
            return [each.result() for each in [drivers.submit(start, folder, barrier) for _ in range(2)]]

    for number in range(rounds):
        claims = start_both(number)
        assert len({each.generation for each in claims}) == 2
        owners = [each for each in claims if each.is_current()]
        assert [each.generation for each in owners] == [max(each.generation for each in claims)]
