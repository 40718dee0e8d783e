"""A typed config for each live value and each control event: what the launchpad shows in place of JSON.

They are made from the schemas in the facts of the component. A selector offers them all, so that one Dagster job is
enough; what it cannot offer, because it has no form or is newer than the facts, goes into ``other``.

Limits of fields are only described: the driver has the model, and its refusal names the fields.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Union

import dagster as dg
from pydantic import Field, JsonValue, create_model

from coord_control.control.model_form import FormField, InputKind, ModelForm, form_of
from coord_control.dagster.facts import KnownJob
from coord_control.dagster.runs.action_configs import ActionConfig, SendConfig, SetConfig, chosen_job, job_choice

__all__ = ["FormChoice", "event_choice", "live_choice"]

#: Forms that one Dagster job offers: the webserver gets all of them with each reload. For others there is ``other``.
_MOST_FORMS: Final = 200
#: By what pydantic tells the members of a selector; the launchpad does not show it.
_MEMBER: Final = "coord_control_form"
_OTHER: Final = "other"
_SET_TO_NULL: Final = "set_to_null"

_TYPES: Final[Mapping[InputKind, type]] = {
    InputKind.INTEGER: int,
    InputKind.NUMBER: float,
    InputKind.BOOLEAN: bool,
    InputKind.TEXT: str,
    InputKind.DATE: str,
    InputKind.TIME: str,
}


class SetForm(ActionConfig):
    """The options of every change of a live value."""

    expect: int | None = Field(default=None, ge=1, description="Change it only if it has this version. Default: any.")


class SendForm(ActionConfig):
    """The options of every control event."""

    subtask: int | None = Field(
        default=None,
        ge=0,
        description="The subtask to send to. Default: all, unless the operator's coordinator handles it.",
    )


class SetOther(dg.Config):
    """A live value without a form."""

    name: str = Field(description="The name of the live value.")
    fields: Any = Field(description="The fields to change, as an object or as JSON text.")


class SendOther(dg.Config):
    """A control event without a form."""

    operator: str = Field(description="The uid of the operator.")
    event_type: str = Field(description="The class name of an event model that the operator declares.")
    payload: Any = Field(description="The fields of the event, as an object or as JSON text.")


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The config of a Dagster job with forms.

    Attributes:
        config: with the selector.
        plain: returns the streaming job that was chosen, and the config of the same action without forms.
    """

    config: type[ActionConfig]
    plain: Callable[[Any], tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class _Known:
    # A live value by its name, or a control event by its operator and its name.
    job: str
    names: tuple[str, ...]
    form: ModelForm

    @property
    def label(self) -> str:
        return "/".join((self.job, *self.names))


def live_choice(jobs: Iterable[KnownJob], choice: Any, names: Sequence[str]) -> FormChoice | None:
    """Return the config that changes one of the live values, or None if none has a form.

    Args:
        choice: the type of a field that names a streaming job.
        names: of all streaming jobs.
    """
    found = [(job.name, (live.name,), form_of(live.schema)) for job in jobs for live in job.live]
    forms = _offered(found)
    if not forms:
        return None
    members = [_member(form, _live_fields(form.form)) for form in forms.values()]
    what = "The live value. Fields that are left out stay as they are."
    config = _with_selector(SetForm, "value", [*members, _other(SetOther, choice, names)], what)

    def plain(given: Any) -> tuple[str, SetConfig]:
        form = forms.get(getattr(given.value, _MEMBER))
        options = {"timeout_seconds": given.timeout_seconds, "expect": given.expect}
        if form is None:
            other = given.value
            return chosen_job(other), SetConfig(name=other.name, fields=other.fields, **options)
        fields = {each.name: value for each, value in _given(given.value, form.form) if value is not None}
        fields |= dict.fromkeys(map(_plain, getattr(given.value, _SET_TO_NULL, ())))
        return form.job, SetConfig(name=form.names[0], fields=fields, **options)

    return FormChoice(config, plain)


def event_choice(jobs: Iterable[KnownJob], choice: Any, names: Sequence[str]) -> FormChoice | None:
    """Return the config that sends one of the control events, or None if none has a form.

    Args:
        choice: the type of a field that names a streaming job.
        names: of all streaming jobs.
    """
    found = [
        (job.name, (operator.uid, event.name), form_of(event.schema))
        for job in jobs
        for operator in job.operators
        for event in operator.events
    ]
    forms = _offered(found)
    if not forms:
        return None
    members = [_member(form, _event_fields(form.form)) for form in forms.values()]
    config = _with_selector(SendForm, "event", [*members, _other(SendOther, choice, names)], "The control event.")

    def plain(given: Any) -> tuple[str, SendConfig]:
        form = forms.get(getattr(given.event, _MEMBER))
        options = {"timeout_seconds": given.timeout_seconds, "subtask": given.subtask}
        if form is None:
            one = given.event
            sent = SendConfig(operator=one.operator, event_type=one.event_type, payload=one.payload, **options)
            return chosen_job(one), sent
        operator, event_type = form.names
        payload = {
            each.name: value
            for each, value in _given(given.event, form.form)
            if value is not None or (each.is_nullable and not _is_computed(each))
        }
        return form.job, SendConfig(operator=operator, event_type=event_type, payload=payload, **options)

    return FormChoice(config, plain)


def _offered(found: Iterable[tuple[str, tuple[str, ...], ModelForm | None]]) -> dict[str, _Known]:
    known = [_Known(job, names, form) for job, names, form in found if form is not None]
    return {each.label: each for each in sorted(known, key=lambda each: each.label)[:_MOST_FORMS]}


def _with_selector(base: type[ActionConfig], name: str, members: Sequence[Any], what: str) -> type[ActionConfig]:
    field = Field(discriminator=_MEMBER, description=what)
    values: dict[str, Any] = {name: (Union[tuple(members)], field)}  # noqa: UP007 - made here
    made: type[ActionConfig] = create_model(base.__name__, __base__=base, **values)
    return made


def _member(known: _Known, fields: Mapping[str, tuple[Any, Any]]) -> Any:
    values: dict[str, Any] = {_MEMBER: (Literal[known.label], known.label), **fields}
    name = re.sub(r"\W", "_", known.names[-1], flags=re.ASCII)
    return create_model(f"Form_{name}", __base__=dg.Config, **values)


def _other(base: type[dg.Config], choice: Any, names: Sequence[str]) -> Any:
    job = Field(choice(names[0]) if len(names) == 1 else ..., description="The streaming job.")
    values: dict[str, Any] = {_MEMBER: (Literal["other"], _OTHER), "job": (choice, job)}
    return create_model(base.__name__, __base__=base, **values)


# The fields have names of ours, and their real ones as aliases: a model may name one like a method of Config.


def _live_fields(form: ModelForm) -> dict[str, tuple[Any, Any]]:
    fields: dict[str, tuple[Any, Any]] = {}
    for place, each in enumerate(form.fields):
        hint = ". ".join(filter(None, [each.hint, f"The model's default: {each.default}" if each.has_default else ""]))
        fields[f"f{place}"] = (_type(each) | None, Field(default=None, alias=each.name, description=hint))
    nullable = [each.name for each in form.fields if each.is_nullable]
    if nullable:
        alias = _SET_TO_NULL
        while alias in {each.name for each in form.fields}:
            alias += "_"
        names: Any = job_choice(nullable, "Nullable")
        fields[_SET_TO_NULL] = (list[names], Field(default=[], alias=alias, description="Fields to set to null."))
    return fields


def _event_fields(form: ModelForm) -> dict[str, tuple[Any, Any]]:
    fields = {}
    for place, each in enumerate(form.fields):
        is_optional = each.is_nullable or _is_computed(each)
        type_ = _type(each) | None if is_optional else _type(each)
        default = ... if each.is_required else _default(each)
        fields[f"f{place}"] = (type_, Field(default=default, alias=each.name, description=each.hint))
    return fields


def _type(each: FormField) -> Any:
    if each.kind is InputKind.CHOICE:
        if all(isinstance(one, bool) for one in each.choices):
            return bool
        if all(isinstance(one, int) for one in each.choices):
            return int
        texts = [one for one in each.choices if isinstance(one, str)]
        return job_choice(texts, "Choice") if len(texts) == len(each.choices) else Any
    return _TYPES.get(each.kind, Any)


def _default(each: FormField) -> Any:
    if each.default is None or _is_computed(each):
        return None
    type_ = _type(each)
    is_converted = type_ is float or (isinstance(type_, type) and issubclass(type_, enum.Enum))
    return type_(each.default) if is_converted else each.default


def _is_computed(each: FormField) -> bool:
    # The model computes the default, or the schema has one that is none.
    if each.is_required or (each.default is None and each.has_default and each.is_nullable):
        return False
    if not each.has_default:
        return True
    try:
        each.parse(each.text(each.default))
    except (ValueError, TypeError):
        return True
    return False


def _given(config: Any, form: ModelForm) -> list[tuple[FormField, JsonValue]]:
    return [(each, _plain(getattr(config, f"f{place}"))) for place, each in enumerate(form.fields)]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value
