"""How much of the log of changes one tick reads, and where the next one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.feed.cursor import CatchUp, Waiting
from coord_control.dagster.feed.pages import Page, Pages
from tests.dagster.sensor_kit import JOB, Jobs, SensorRig

HOUR = timedelta(hours=1)
OTHER = "other"


@pytest.fixture
def client(rig: SensorRig, jobs: Jobs) -> Iterator[ControlClient]:
    with ControlClient(f"sqlite:///{rig.file}") as client:
        yield client


def pages(client: ControlClient, *, changes: int = 3, subtasks: int = 1000, is_over: bool = False) -> Pages:
    return Pages(client, changes=changes, subtasks=subtasks, is_over=lambda: is_over)


def checkpoints(page: Page) -> list[int]:
    return [change.checkpoint.id for change in page.changes if change.checkpoint is not None]


def hour_ago() -> datetime:
    return datetime.now(UTC) - HOUR


def test_pages_follow_each_other_without_a_gap(client: ControlClient, jobs: Jobs) -> None:
    for _ in range(7):
        jobs.checkpoint()
    newest = client.newest_change()
    read, page = list[int](), Page((), 0, False)
    while not page.is_last:
        page = pages(client).after(page.through, [JOB], floor=hour_ago(), newest=newest)
        read += checkpoints(page)
    assert read == [1, 2, 3, 4, 5, 6, 7]
    assert page.through == newest


def test_all_that_was_read_is_behind_the_next_page_also_when_it_is_of_other_jobs(
    client: ControlClient, jobs: Jobs
) -> None:
    jobs.put(OTHER)
    jobs.checkpoint()
    jobs.checkpoint(OTHER)
    newest = client.newest_change()
    page = pages(client).after(0, [JOB], floor=hour_ago(), newest=newest)
    assert (checkpoints(page), page.through, page.is_last) == ([1], newest, True)


def test_what_is_older_is_left_out_and_not_looked_at_again(client: ControlClient, jobs: Jobs) -> None:
    for _ in range(4):
        jobs.checkpoint(age=2 * HOUR)
    jobs.checkpoint()
    page = pages(client).after(0, [JOB], floor=hour_ago(), newest=0)
    assert (checkpoints(page), page.is_last) == ([5], True)
    short = pages(client, is_over=True).after(0, [JOB], floor=hour_ago(), newest=0)
    assert (checkpoints(short), short.is_last) == ([], False)
    assert 0 < short.through < page.through


def test_a_page_ends_before_it_has_too_many_subtasks_but_has_one_change(client: ControlClient, jobs: Jobs) -> None:
    for _ in range(2):
        jobs.checkpoint(subtasks=6)
    page = pages(client, subtasks=10).after(0, [JOB], floor=hour_ago(), newest=0)
    assert (checkpoints(page), page.is_last) == ([1], False)
    page = pages(client, subtasks=1).after(page.through, [JOB], floor=hour_ago(), newest=0)
    assert (checkpoints(page), page.is_last) == ([2], True)


def test_late_changes_end_where_those_of_all_jobs_begin(client: ControlClient, jobs: Jobs) -> None:
    jobs.checkpoint()
    until = client.newest_change()
    jobs.checkpoint()
    late = CatchUp((JOB, "gone"), 0, until, hour_ago())
    page = pages(client).late(late, [JOB])
    assert (checkpoints(page), page.is_last) == ([1], True)
    page = pages(client).late(late, [OTHER])
    assert (checkpoints(page), page.is_last) == ([], True)


def test_single_changes_are_found_wherever_they_are(client: ControlClient, jobs: Jobs) -> None:
    for _ in range(9):
        jobs.checkpoint()
    sequences = {change.checkpoint.id: change.sequence for change in client.changes(0) if change.checkpoint is not None}
    waiting = [Waiting(sequence, JOB, "run") for sequence in (sequences[8], sequences[2], sequences[9] + 100)]
    found = pages(client).of(waiting)
    assert [change.sequence for change in found] == [sequences[2], sequences[8]]
