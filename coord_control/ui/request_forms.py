"""The forms of a job's page that change live values and send control events, made from the schemas in the database.

A form knows what was entered, so that it can be shown again with what is wrong next to each field: found by the page
itself before anything is sent, or by the driver afterwards.

Threads: values; any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import JsonValue

from coord_control.control.commands import Command, SendEvent, SetLive, requested
from coord_control.control.model_form import FormField, InputKind, ModelForm, form_of
from coord_control.storage.records import CommandKind, CommandRecord, JobRecord

__all__ = ["Entered", "NotSent", "PageField", "RequestForm", "forms_of"]

_FIELD: Final = "field."
_NULL: Final = "null."
_SET: Final = "set"
_SEND: Final = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What was entered into one of the forms, and what is wrong with it.

    Attributes:
        action: of the form.
        values: as in the command, or None if ``texts`` has them.
        texts: as the browser sent them.
        problems: by field.
        message: what is wrong with the whole.
    """

    action: str
    values: Mapping[str, JsonValue] | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    message: str = ""

    @classmethod
    def of(cls, command: CommandRecord | None) -> Entered | None:
        """Return what was entered into the form of a command that did not succeed, or None."""
        if command is None or command.error is None:
            return None
        found, payload = command.error, command.payload
        if command.kind == CommandKind.SET_LIVE:
            action, values = f"{_SET}:{payload.get('name')}", payload.get("fields")
        elif command.kind == CommandKind.SEND_EVENT:
            action, values = f"{_SEND}:{payload.get('operator')}:{payload.get('event_type')}", payload.get("payload")
        else:
            return None
        problems = {str(each["loc"][0]): str(each.get("msg", "")) for each in found.fields if each.get("loc")}
        values = values if isinstance(values, Mapping) else {}
        return cls(action=action, values=values, problems=problems, message=found.message)


class NotSent(Exception):
    """Something that was entered is wrong, and no request was made.

    Attributes:
        entered: it, with what is wrong.
    """

    def __init__(self, entered: Entered) -> None:
        self.entered = entered
        super().__init__("the form was not sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageField:
    """A field as it is shown.

    Attributes:
        id: in the page.
        text: what is in the input.
        is_marked: whether it is called required.
        is_null: whether the box for "no value" of a text is ticked.
        is_long: whether the input has several lines.
        problem: what is wrong with it.
    """

    id: str
    field: FormField
    text: str
    is_marked: bool
    is_null: bool
    problem: str

    @property
    def kind(self) -> str:
        return self.field.kind.value

    @property
    def is_long(self) -> bool:
        return self.field.kind is InputKind.JSON or "\n" in self.text or len(self.text) > 60

    @property
    def may_be_null(self) -> bool:
        """Return whether "no value" needs a box, because an empty input is a value."""
        return self.field.is_nullable and self.field.kind is InputKind.TEXT

    @property
    def choices(self) -> Iterator[tuple[str, str, bool]]:
        """Return key, words and whether it is chosen of each choice; the first one may be "no value"."""
        if self.field.is_nullable or self.text == "":
            yield "", "no value" if self.field.is_nullable else "choose one", self.text == ""
        for each in self.field.choices:
            text = self.field.text(each)
            yield text, each if isinstance(each, str) else json.dumps(each), text == self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """A form of the page.

    Attributes:
        action: names it in a request.
        heading: what it does.
        fields: None: the schema has no form.
        version: of the live value that it shows.
        subtasks: of the operator that gets the event.
        command: how to do it in a terminal.
        entered: what was entered last, if that did not succeed.
    """

    id: str
    action: str
    heading: str
    model: ModelForm | None
    values: Mapping[str, JsonValue]
    version: int | None = None
    subtasks: int | None = None
    command: str
    entered: Entered | None = None

    @property
    def fields(self) -> tuple[PageField, ...]:
        """Return the fields as they are shown: with what was entered, or with what is there now."""
        return tuple(self._field(place, each) for place, each in enumerate(self.model.fields if self.model else ()))

    @property
    def message(self) -> str:
        return "" if self.entered is None else self.entered.message

    @property
    def subtask(self) -> str:
        return "" if self.entered is None else self.entered.texts.get("subtask", "")

    @property
    def subtask_problem(self) -> str:
        return "" if self.entered is None else self.entered.problems.get("", "")

    def request(self, texts: Mapping[str, str]) -> Command[Any]:
        """Return the command for what was entered.

        Args:
            texts: all fields of the request.

        Raises:
            NotSent: something is wrong with it.
            RequestInvalid: it is too large.
        """
        assert self.model is not None, "it has a form"
        texts = {name: text.replace("\r\n", "\n") for name, text in texts.items()}
        fields = {name.removeprefix(_FIELD): text for name, text in texts.items() if name.startswith(_FIELD)}
        nulls = [name.removeprefix(_NULL) for name in texts if name.startswith(_NULL)]
        values, problems = self.model.read(fields, nulls)
        for each in self.model.fields:
            shown = ("", each.text(self.values.get(each.name)))
            if each.name in nulls and fields.get(each.name, "") not in shown:
                problems[each.name] = "Clear the box “no value”, or empty the text."
        subtask = texts.get("subtask", "").strip()
        if self.subtasks is not None and subtask and not (subtask.isascii() and subtask.isdigit()):
            problems[""] = "Enter the number of a subtask, or nothing for all."
        if problems:
            raise NotSent(Entered(action=self.action, texts=texts, problems=problems, message="Nothing was sent."))
        kind, _, name = self.action.partition(":")
        if kind == _SEND:
            operator, _, event_type = name.rpartition(":")
            number = int(subtask) if subtask else None
            return requested(SendEvent, operator=operator, event_type=event_type, payload=values, subtask=number)
        # All fields, and the version that they were shown with: a form that is sent twice is the same request, also
        # when the first one is over.
        version = texts.get("version", "")
        expect = int(version) if version.isascii() and version.isdigit() else None
        if values == self.values and expect == self.version:
            raise NotSent(Entered(action=self.action, texts=texts, message="Nothing was changed."))
        return requested(SetLive, name=name, fields=values, expect=expect)

    def _field(self, place: int, each: FormField) -> PageField:
        entered = self.entered
        if entered is None or (entered.values is not None and each.name not in entered.values):
            value = self.values.get(each.name, each.default)
            text, is_null = each.text(value), value is None and (each.name in self.values or each.has_default)
        elif entered.values is not None:
            text, is_null = each.text(entered.values[each.name]), entered.values[each.name] is None
        else:
            text, is_null = entered.texts.get(_FIELD + each.name, ""), _NULL + each.name in entered.texts
        if each.kind is InputKind.BOOLEAN:
            text = "" if text in ("", "false") else "true"
        problem = "" if entered is None else entered.problems.get(each.name, "")
        is_marked = each.is_required and self.version is None and each.kind not in (InputKind.BOOLEAN, InputKind.TEXT)
        return PageField(
            id=f"{self.id}-{place}", field=each, text=text, is_marked=is_marked, is_null=is_null, problem=problem
        )


def forms_of(job: JobRecord, entered: Entered | None = None) -> tuple[RequestForm, ...]:
    """Return the forms of a job: of its live values, then of the control events of its operators."""
    found: list[RequestForm] = []
    for value in job.live_values:
        form = RequestForm(
            id=f"form-{len(found)}",
            action=f"{_SET}:{value.name}",
            heading=f"Change {value.name}",
            model=_without_defaults(form_of(value.schema)),
            values=value.value,
            version=value.version,
            command=f"coordctl set {job.name} {value.name} FIELD=VALUE",
        )
        found.append(form)
    for operator in job.operators:
        for event in operator.event_types:
            form = RequestForm(
                id=f"form-{len(found)}",
                action=f"{_SEND}:{operator.uid}:{event.name}",
                heading=f"Send {event.name} to {operator.uid}",
                model=form_of(event.schema),
                values={},
                subtasks=operator.parallelism,
                command=f"coordctl event send {job.name} {operator.uid} {event.name} JSON",
            )
            found.append(form)
    if entered is None:
        return tuple(found)
    return tuple(replace(each, entered=entered) if each.action == entered.action else each for each in found)


def _without_defaults(form: ModelForm | None) -> ModelForm | None:
    # A live value has all of its fields: an empty input is a value, or is wrong, but never leaves a field out.
    if form is None:
        return None
    return replace(form, fields=tuple(replace(each, is_required=True) for each in form.fields))
