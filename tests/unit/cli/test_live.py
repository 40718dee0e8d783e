from __future__ import annotations

import json
from pathlib import Path

import pytest

from coord_control.storage.records import CommandKind, JobState
from coord_control.storage.store import ControlStore
from tests.cli_kit import run
from tests.command_kit import parsed
from tests.control_kit import JOB, put_live_value


def test_fields_become_a_command_and_texts_stay_texts(store: ControlStore, tmp_path: Path) -> None:
    fields = ["minutes=45", "carrier=a=b", "city:=null", 'label:="7"', "rows:=7"]
    printed = run(tmp_path, "set", JOB, "limits", *fields, "--expect", "3", "--no-wait")
    [command] = store.commands.list(JOB)
    assert command.kind is CommandKind.SET_LIVE
    assert command.payload == {
        "name": "limits",
        "fields": {"minutes": "45", "carrier": "a=b", "city": None, "label": "7", "rows": 7},
        "expect": 3,
    }
    assert f"command {command.id}" in printed


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("minutes", "is not FIELD=VALUE"),
        ("=45", "is not FIELD=VALUE"),
        (":=45", "is not FIELD=VALUE"),
        ("minutes:=soon", "is not valid JSON"),
    ],
)
def test_what_is_no_field_is_refused_before_anything_is_sent(
    store: ControlStore, tmp_path: Path, field: str, said: str
) -> None:
    assert said in run(tmp_path, "set", JOB, "limits", field, code=2)
    assert not store.commands.list(JOB)


def test_get_takes_a_job_and_a_name() -> None:
    assert (parsed(["get", JOB, "limits"])["job"], parsed(["get", JOB, "limits"])["name"]) == (JOB, "limits")


def test_get_without_a_name_lists_what_the_database_knows(store: ControlStore, tmp_path: Path) -> None:
    assert f"job {JOB} has no live values" in run(tmp_path, "get", JOB)
    put_live_value(store, minutes=45.0, carrier=None, city="null", airport="New York", code="7", note="late")
    printed = run(tmp_path, "get", JOB)
    assert 'carrier=null city="null" airport="New York" code="7" note=late' in printed
    put_live_value(store, minutes=45.0)
    printed = run(tmp_path, "get", JOB)
    assert "limits of job flights has version 3, set by ada: minutes=45.0" in printed
    assert "version 2 since epoch 7, version 3 from epoch 43 on" in printed
    assert "heartbeat" not in printed
    [listed] = json.loads(run(tmp_path, "get", JOB, "--json"))
    assert (listed["name"], listed["value"]) == ("limits", {"minutes": 45.0})
    assert not store.commands.list(JOB)


def test_get_shows_the_values_of_a_job_that_does_not_run(store: ControlStore, tmp_path: Path) -> None:
    put_live_value(store, minutes=45.0)
    store.jobs.ended(JOB, 1, JobState.ENDED, "stopped")
    printed = run(tmp_path, "get", JOB)
    assert "heartbeat" in printed
    assert "minutes=45.0" in printed
