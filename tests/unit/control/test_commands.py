from __future__ import annotations

import datetime
import pkgutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coord_control.control import commands
from coord_control.storage.records import CommandKind

_EXAMPLES: list[commands.Command[Any]] = [
    commands.TriggerCheckpoint(label="nightly"),
    commands.TriggerSavepoint(target="/s", label=None),
    commands.Abort(checkpoint=7),
    commands.Abort(command="abc"),
    commands.Stop(grace_seconds=5.0),
    commands.StopWithSavepoint(),
    commands.Restart(),
    commands.Restore(ref="latest", as_name="other"),
    commands.Dispose(ref="7"),
    commands.Verify(ref="/s"),
    commands.SendEvent(operator="op", event_type="Threshold", payload={"minutes": 45}, subtask=0),
    commands.Ask(operator="op", request="Current", payload={"carrier": "UA"}),
    commands.SetLive(name="limits", fields={"minutes": 45, "carrier": None}, expect=3),
    commands.GetLive(name="limits"),
]

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_every_kind_is_in_the_table_with_a_module_of_its_name() -> None:
    modules = {each.name for each in pkgutil.iter_modules(commands.__path__)}
    assert modules == {kind.value for kind in CommandKind}
    assert set(commands.COMMANDS) == set(CommandKind)
    for kind, command in commands.COMMANDS.items():
        assert command.__module__ == f"{commands.__name__}.{kind.value}"


def test_there_is_a_model_and_a_result_for_every_kind() -> None:
    assert {each.kind for each in _EXAMPLES} == set(CommandKind)
    for kind in CommandKind:
        with pytest.raises(ValidationError):
            commands.parse_result(kind, {"checkpoint": "no number", "savepoint": 1})


@pytest.mark.parametrize("command", _EXAMPLES, ids=lambda each: each.kind)
def test_a_command_comes_out_of_the_database_as_it_went_in(command: commands.Command[Any]) -> None:
    assert commands.parse_command(command.kind, commands.command_payload(command)) == command


@given(_JSON)
def test_any_json_is_a_payload(payload: Any) -> None:
    command = commands.SendEvent(operator="op", event_type="T", payload=payload)
    assert commands.parse_command(command.kind, commands.command_payload(command)) == command


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("trigger_checkpoint", {"label": ""}),
        ("trigger_checkpoint", {"label": "x" * 129}),
        ("trigger_checkpoint", {"unknown": 1}),
        ("trigger_savepoint", {"target": "x" * 4097}),
        ("abort", {}),
        ("abort", {"checkpoint": 1, "command": "a"}),
        ("abort", {"checkpoint": 0}),
        ("stop", {"grace_seconds": -1}),
        ("stop", {"grace_seconds": float("inf")}),
        ("restore", {}),
        ("send_event", {"operator": "op", "event_type": "T", "payload": {}, "subtask": -1}),
        ("send_event", {"operator": "op", "event_type": "T", "payload": "x" * (256 * 1024)}),
        ("send_event", {"operator": "op", "event_type": "T", "payload": float("nan")}),
        ("ask", {"operator": "op", "request": "R", "payload": "x" * (64 * 1024)}),
        ("ask", {"operator": "op", "payload": {}}),
        ("set_live", {"name": "limits", "fields": {}}),
        ("set_live", {"name": "", "fields": {"minutes": 1}}),
        ("set_live", {"name": "limits", "fields": {"minutes": 1}, "expect": 0}),
        ("set_live", {"name": "limits", "fields": {"minutes": "x" * (16 * 1024)}}),
        ("set_live", {"name": "limits", "fields": {"minutes": float("nan")}}),
        ("get_live", {"name": "limits", "unknown": 1}),
        ("drop_everything", {}),
    ],
)
def test_what_no_driver_should_see_is_refused(kind: str, payload: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        commands.parse_command(kind, payload)


def test_a_payload_of_the_greatest_size_is_taken() -> None:
    for longest in ("x" * (commands.MAX_EVENT_BYTES - 2), "航" * ((commands.MAX_EVENT_BYTES - 2) // 3)):
        assert commands.SendEvent(operator="op", event_type="T", payload=longest).payload == longest


@pytest.mark.parametrize("letter", ["é", "😀"])
def test_a_payload_that_the_database_would_refuse_is_refused_with_the_reason(letter: str) -> None:
    """Bug: it was refused as ``CHECK constraint failed``."""
    long = letter * (240_000 // len(letter.encode()))
    with pytest.raises(ValidationError, match=r"720002 bytes with its characters escaped.* the limit is 524288"):
        commands.SendEvent(operator="op", event_type="T", payload=long)


def test_a_newer_driver_may_say_more_in_a_result() -> None:
    result = commands.parse_result("dispose", {"path": "/s", "checkpoint": 7, "new_fact": True})
    assert result == commands.DisposeResult(path="/s", checkpoint=7)


def test_a_savepoint_is_intact_when_no_problem_is_fatal() -> None:
    fields: dict[str, Any] = {"path": "/s", "checkpoint": 7, "files": 1, "size": 2}
    assert commands.VerifyResult(**fields).is_intact
    assert commands.VerifyResult(**fields, problems=({"path": "x", "fatal": False},)).is_intact
    assert not commands.VerifyResult(**fields, problems=({"path": "x", "fatal": True},)).is_intact


_LIVE = commands.LiveResult(
    name="limits",
    version=3,
    value={"minutes": 45.0, "carrier": "UA"},
    by="ada",
    at=datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
    queries={
        "late": commands.LiveInQuery(version=2, since=7, next_epoch=12),
        "early": commands.LiveInQuery(version=3, since=9, next_epoch=None),
    },
)
_MADE = commands.CheckpointResult(checkpoint=7, kind="savepoint", path="/s/7", duration_seconds=1.5, state_bytes=2_000)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (commands.AbortResult(checkpoint=7), "checkpoint 7 was aborted"),
        (commands.AbortResult(checkpoint=None), "the checkpoint was aborted"),
        (_MADE, "savepoint 7: /s/7\n2.0 kB in 1.5 s"),
        (commands.StopResult(), "job j has stopped"),
        (commands.StopResult(savepoint=_MADE), "job j has stopped after savepoint 7"),
        (commands.RestartResult(generation=3), "job j is running again, generation 3"),
        (commands.RestoreResult(path="/c/7", checkpoint=7, job="j"), "job j resumes from checkpoint 7: /c/7"),
        (
            commands.RestoreResult(path="/c/7", checkpoint=7, job="k"),
            "job k was forked from checkpoint 7: /c/7\n"
            'start its program now: Job("k", ...) with the same root, and with separate sinks',
        ),
        (commands.DisposeResult(path="/c/7", checkpoint=7), "removed /c/7"),
        (commands.SendEventResult(number=3), "event 3 has taken effect"),
        (commands.AskResult(answer={"minutes": 45}), '{\n  "minutes": 45\n}'),
        (commands.VerifyResult(path="/c/7", checkpoint=7, files=2, size=3), "2 files, 3 bytes, all intact"),
        (_LIVE, "limits of job j has version 3, set by ada: minutes=45.0 carrier=UA"),
        (
            _LIVE,
            "query early: version 3 since epoch 9\nquery late: version 2 since epoch 7, version 3 from epoch 12 on",
        ),
    ],
)
def test_a_result_is_a_sentence(result: commands.CommandResult, text: str) -> None:
    assert text in result.text("j")
