"""Between an operator's request models and JSON: requests are parsed, answers are checked and bounded.

Threads: any; immutable.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import PydanticSerializationError

from coord_control.coordinators.requests import MAX_ANSWER_BYTES, CommittedStates, Request, answer_model
from coord_control.coordinators.saved_state import fields_of, lost_numbers, problems_of
from coord_control.errors import InvalidModel, RequestFailed, RequestNotValid, UndeclaredRequest
from coord_control.protocol.job_facts import RequestSchema
from coord_control.spark.worker.model_codec import in_words, json_schema, unknown_fields

__all__ = ["RequestTypes"]


class RequestTypes:
    """The requests that one operator answers: those that it declares, and :class:`CommittedStates`.

    Raises:
        InvalidModel: a model is no request, does not name its answer, or has the name of another one.
    """

    def __init__(self, operator: str, models: Sequence[type[Request[Any]]] = ()) -> None:
        self._operator = operator
        self._models: dict[str, type[Request[Any]]] = {CommittedStates.__name__: CommittedStates}
        for model in models:
            self._add(model)

    def parse(self, name: str, payload: JsonValue) -> Request[Any]:
        """Return the request that a client has sent.

        Raises:
            UndeclaredRequest: no request of this name is declared.
            RequestNotValid: it does not fit; ``fields`` says where.
        """
        if (model := self._models.get(name)) is None:
            declared = self._declared()
            raise UndeclaredRequest(self._operator, name, declared, difflib.get_close_matches(name, self._models, n=3))
        try:
            request = model.model_validate_json(json.dumps(payload, allow_nan=False), by_alias=False, by_name=True)
        except ValidationError as error:
            raise RequestNotValid(self._operator, name, problems_of(error), fields_of(error)) from error
        if unknown := unknown_fields(model, payload):
            raise RequestNotValid(self._operator, name, in_words(unknown), unknown)
        return request

    def answer(self, request: Request[Any], answer: BaseModel) -> JsonValue:
        """Return an answer as JSON, as its model writes and reads it.

        Raises:
            RequestFailed: it is no answer to this request, or takes more than :data:`MAX_ANSWER_BYTES` bytes.
        """
        name, model = type(request).__name__, answer_model(type(request))
        if not isinstance(answer, model):
            raise RequestFailed(self._operator, name, f"it returned {type(answer).__name__}, not {model.__name__}")
        try:
            data = answer.__pydantic_serializer__.to_json(answer, by_alias=False, warnings="error")
            lost = lost_numbers(answer, model.model_validate_json(data, by_alias=False, by_name=True))
        except PydanticSerializationError as error:
            raise RequestFailed(self._operator, name, f"its {model.__name__} cannot be sent: {error}") from error
        except ValidationError as error:
            why = f"it returned no valid {model.__name__}: {problems_of(error)}"
            raise RequestFailed(self._operator, name, why) from error
        if lost:
            raise RequestFailed(self._operator, name, f"its {model.__name__} cannot be sent: {lost}")
        if len(data) > MAX_ANSWER_BYTES:
            why = f"its {model.__name__} takes {len(data)} bytes, the limit is {MAX_ANSWER_BYTES}; answer in pages"
            raise RequestFailed(self._operator, name, why)
        found: JsonValue = json.loads(data)
        return found

    def schemas(self) -> tuple[RequestSchema, ...]:
        """Return the declared requests with the JSON schemas of both models."""
        models = [self._models[name] for name in self._declared()]
        return tuple(
            RequestSchema(each.__name__, json_schema(each), json_schema(answer_model(each))) for each in models
        )

    def _declared(self) -> list[str]:
        return [name for name, model in self._models.items() if model is not CommittedStates]

    def _add(self, model: type[Request[Any]]) -> None:
        if not _is_request(model):
            why = "requests are subclasses of cc.Request[...], which names the model of the answer"
            raise InvalidModel(self._operator, f"request {model!r}", why)
        try:
            answer_model(model)
        except TypeError as error:
            raise InvalidModel(self._operator, f"request {model.__name__}", str(error)) from error
        if model.__name__ in self._models:
            why = "another request of the operator has this name, by which it is found"
            raise InvalidModel(self._operator, f"request {model.__name__}", why)
        self._models[model.__name__] = model


def _is_request(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Request)
