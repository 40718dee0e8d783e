"""What the pages say, read from a real control database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import CheckpointState
from coord_control.ui.app import make_app
from tests.control_kit import JOB, NASTY, opened, put_checkpoint, put_job, put_recovery, settings
from tests.patience import eventually
from tests.ui.story import FAILED, NEWEST, SAVEPOINT, SLOW, put_gateways
from tests.ui.visitor import (
    Visitor,
    text_of,
)


def checkpoint_path(number: int) -> str:
    return f"/jobs/flights/checkpoints/{number}"


# All jobs.


def test_all_jobs_with_what_is_blocked_and_when_they_were_last_saved(visitor: Visitor) -> None:
    text = visitor.text("/")
    assert "Running 1 of 2" in text
    assert "Events blocked now 43" in text
    assert re.search(rf"flights running 3 {SLOW} [\dm ]+s ago 3\.4 s 1 43 0 2", text)
    assert "invoices failed 3 none 0 0 0 0" in text


def test_a_database_without_jobs_says_how_to_get_one(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with ControlClient(settings=settings(tmp_path)) as client:
        client.settings.open_database("test").upgrade()
        text = Visitor(make_app(client)).text("/")
    assert "No job has used" in text
    assert "COORD_CONTROL" in text


def test_failures_in_a_row_stand_beside_their_job(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_job(store)
        for number in (1, 2):
            put_checkpoint(store, number, state=CheckpointState.FAILED, reason="disk_full", path=None)
    with ControlClient(settings=settings(tmp_path)) as client:
        text = Visitor(make_app(client)).text("/")
    assert "Jobs with failing checkpoints 1" in text
    assert "2 disk full" in text


# One job.


def test_a_job_begins_with_what_is_blocked_now_and_where(visitor: Visitor) -> None:
    text = visitor.text("/jobs/flights")
    assert f"43 events are blocked now while checkpoint {NEWEST} is in progress" in text
    assert "43 at 3 closed of 12 gateways of delay-threshold" in text
    assert text.index("43 events are blocked now") < text.index("Latest completed")


def test_a_job_has_what_flinks_tab_of_checkpoints_has(visitor: Visitor) -> None:
    text = visitor.text("/jobs/flights")
    assert re.search(rf"Latest completed {SLOW} [\dm ]+s ago, 3\.4 s, 48\.2 MB", text)
    assert re.search(rf"Latest savepoint {SAVEPOINT} nightly", text)
    assert re.search(rf"Latest failed {FAILED} expired", text)
    assert re.search(r"Restored from 10 3h 0m ago", text)
    assert "31 total 1 in progress 2 failed 19 completed 9 discarded" in text
    assert re.search(r"took 978 ms 1\.4 s 3\.1 s 3\.4 s", text)
    assert re.search(rf"{SLOW} checkpoint completed \S+ \S+ 3\.4 s 48\.2 MB 3\.5 MB \d+ closed 2\.8 s", text)
    assert "30 checkpoints, from 1 to 30" not in text  # 30 are read, and the one under way has not ended
    assert "29 checkpoints, from 2 to 30; 2 failed; the longest took 5.0 s." in text


def test_a_job_has_its_gateways_recoveries_and_commands(visitor: Visitor) -> None:
    text = visitor.text("/jobs/flights")
    assert "delay-threshold 2 closed 31 71 1.7 s 2" in text
    assert "subtask 7: closed, 0 events blocked" in text
    assert "query failed alerts 3 1688" in text
    assert "abort refused ada@laptop it has already finished, or was never started" in text
    assert "trigger savepoint completed ada@laptop checkpoint 20" in text


def test_a_job_has_its_queries_with_what_waits_in_their_sources(visitor: Visitor) -> None:
    text = visitor.text("/jobs/flights")
    assert "backlog watermark behind by restarts alerts running 1842 12,340 45,678 2.5 s 0" in text
    assert "ranks running 1842 0" in text, "nothing was reported of it"


def test_the_history_goes_on_with_older_ones(visitor: Visitor) -> None:
    first = visitor.get("/jobs/flights").text
    [older] = set(re.findall(r'href="(/jobs/flights\?before=\d+)', first))
    second = text_of(visitor.get(older))
    assert older.endswith("before=17")
    assert "16 checkpoint completed" in second
    assert "17 checkpoint completed" not in second
    assert "Newest" in second
    assert "Older" in second
    last = visitor.text("/jobs/flights?before=3")
    assert "Older" not in last


def test_a_job_that_has_ended_says_why_and_nothing_of_its_gateways(visitor: Visitor) -> None:
    text = visitor.text("/jobs/invoices")
    assert "not running since" in text
    assert "the schema of the source has changed" in text
    assert "as of the driver's last heartbeat" in text
    assert "No checkpoint has been started yet." in text
    assert "The job has never had to recover." in text
    assert "gateways closed" not in text


# One checkpoint.


def test_a_checkpoint_with_its_parts_and_the_command_that_restores_it(visitor: Visitor) -> None:
    text = visitor.text(checkpoint_path(SLOW))
    assert "Took 3.4 s" in text
    assert "coordctl restore flights 30" in text
    assert "/jobs/flights/checkpoints/30" in text
    assert re.search(r"alerts 1830 3\.1 s 272 ms 46 24\.0 MB", text)
    assert '{"flights": {"logOffset": 1830}}' in text
    assert "delay-threshold alerts 12 of 12 20 ms 80 ms" in text


def test_the_table_of_subtasks_says_what_the_drawing_shows(visitor: Visitor) -> None:
    text = visitor.text(checkpoint_path(SLOW))
    drawn = "subtask 5: gateway closed after 100 ms, acknowledged after 2.9 s, opened after 2.9 s, 31 events waited"
    assert drawn in text
    assert "delay-threshold 5 100 ms 2.9 s 2.9 s 2.1 kB 31 2.8 s" in text
    assert "carrier-rank 3 50 ms 180 ms 2.1 kB 0 0 ms" in text  # quicker than its coordinator: never closed


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("subtask", "carrier-rank 0"),
        ("blocked_events", "delay-threshold 5"),
        ("blocked_seconds", "delay-threshold 5"),
        ("passed_seconds", "delay-threshold 5"),
        ("ack_seconds", "delay-threshold 5"),
        ("state_bytes", "delay-threshold 11"),
        ("moon", "carrier-rank 0"),
    ],
)
def test_subtasks_can_be_ordered(visitor: Visitor, order: str, first: str) -> None:
    answer = visitor.get(f"{checkpoint_path(SLOW)}?by={order}")
    assert f"events up {first} " in text_of(answer)
    assert answer.text.count("aria-sort=") == 1


def test_a_failed_checkpoint_says_why_and_what_to_do_next(visitor: Visitor) -> None:
    text = visitor.text(checkpoint_path(FAILED))
    assert "It was not complete within timeout_seconds expired" in text
    assert "What to do next: look in its statistics" in text
    assert "subtask 5 of delay-threshold has not passed" in text
    assert "coordctl restore" not in text


def test_a_failed_checkpoint_shows_in_words_who_has_not_passed(visitor: Visitor) -> None:
    text = visitor.text(checkpoint_path(FAILED))
    assert "17 of 18" in text
    assert "alerts 1819 not reached" in text
    assert "delay-threshold alerts 11 of 12 20 ms 80 ms" in text
    assert "subtask 5: gateway closed after 100 ms, has not passed the boundary, 31 events waited" in text
    assert " 5, not passed " in text
    assert "delay-threshold 5 not passed 2.1 kB 31 4.9 s" in text


def test_a_checkpoint_under_way_shows_the_gateways_and_looks_again(visitor: Visitor) -> None:
    answer = visitor.get(checkpoint_path(NEWEST))
    assert "13 of 18 subtasks" in text_of(answer)
    assert "43 events are blocked now" in text_of(answer)
    assert "delay-threshold 2 closed 31" in text_of(answer)
    assert 'data-refresh="1"' in answer.text
    assert 'data-refresh="0"' in visitor.get(checkpoint_path(SLOW)).text


def test_a_discarded_checkpoint_cannot_be_restored(visitor: Visitor) -> None:
    text = visitor.text(checkpoint_path(5))
    assert "discarded" in text
    assert "coordctl restore" not in text


def test_blocked_events_of_a_driver_that_is_gone_are_not_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_job(store, generation=3, lease_seconds=0.001)
        put_gateways(store, {1: 5}, None)
    with ControlClient(settings=settings(tmp_path)) as client:
        eventually(lambda: not client.job(JOB).is_alive)
        visitor = Visitor(make_app(client))
        assert "Events blocked now 0" in visitor.text("/")
        text = visitor.text("/jobs/flights")
    assert "lost since" in text
    assert "are blocked now" not in text


# What is not there, and what others wrote.


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/nowhere", "Not Found"),
        ("/jobs/flight", "flights"),
        ("/jobs/flights/checkpoints/999", "31 or 30 or 29"),
        (f"/jobs/flights/checkpoints/{10**30}", "no checkpoint of this number"),
        ("/jobs/flights?asked=nothing", "nothing"),
    ],
)
def test_what_is_not_there_is_said_with_what_is_near(visitor: Visitor, path: str, word: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert word in text_of(answer)


def test_pages_cannot_be_posted_to_when_there_are_no_buttons(visitor: Visitor) -> None:
    assert visitor.post("/jobs/flights", data={"action": "checkpoint"}).status_code == 405
    assert visitor.post("/jobs/flights/actions", data={"action": "checkpoint"}).status_code == 404
    assert "<form" not in visitor.get("/jobs/flights").text


def test_a_database_that_is_away_is_said_and_worth_another_try(tmp_path: Path) -> None:
    missing = settings(tmp_path / "gone", retry_seconds=0.01)
    with ControlClient(settings=missing) as client:
        answer = Visitor(make_app(client)).get("/")
    assert answer.status_code == 503
    assert "The control database cannot be read" in text_of(answer)


def test_what_users_wrote_is_text_and_nothing_else(tmp_path: Path) -> None:
    evil = f"<script>alert(1)</script>{NASTY}"
    with opened(tmp_path) as store:
        put_job(store, host=evil)
        put_checkpoint(store, 1, label=evil)
        put_checkpoint(store, 2, state=CheckpointState.FAILED, reason="internal", message=evil, path=None)
        put_recovery(store, evil)
    with ControlClient(settings=settings(tmp_path)) as client:
        visitor = Visitor(make_app(client))
        pages = [visitor.get(path).text for path in ("/", "/jobs/flights", checkpoint_path(1), checkpoint_path(2))]
    for page in pages:
        assert "<script>" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
    assert all("&lt;script&gt;alert(1)&lt;/script&gt;" in page for page in pages[1:])
    assert "\\u202eevil" in pages[1]
