"""``dg scaffold defs dagster_defs.StreamingJobComponent NAME``: writes a first definition file."""

from __future__ import annotations

from typing import Any, Final, Self

import dagster as dg
from pydantic import BaseModel, Field, model_validator

__all__ = ["StreamingJobParams", "StreamingJobScaffolder"]

_PYTHON: Final = """\
import dagster as dg

from coord_control.dagster import StreamingJobComponent


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> StreamingJobComponent:
    return StreamingJobComponent.model_validate({attributes!r})
"""


class StreamingJobParams(BaseModel):
    """The command-line options."""

    database: str | None = Field(
        default=None, description="The control database URL; defaults to COORD_CONTROL, or to the embedded database."
    )
    job: str | None = Field(default=None, description="The name of a job; without it, all jobs of the database.")
    script: str | None = Field(default=None, description="The program of that job, so that Dagster can start it.")

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.script is not None and self.job is None:
            raise ValueError("--script is the program of one job: name the job with --job")
        return self


class StreamingJobScaffolder(dg.Scaffolder[StreamingJobParams]):
    """Writes ``defs.yaml``, or ``component.py``."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamingJobParams]:
        return StreamingJobParams

    def scaffold(self, request: dg.ScaffoldRequest[StreamingJobParams]) -> None:
        attributes = _attributes(request.params)
        if request.scaffold_format == "yaml":
            dg.scaffold_component(request, attributes)
        else:
            path = request.target_path / "component.py"
            path.write_text(_PYTHON.format(attributes=attributes), encoding="utf-8")


def _attributes(params: StreamingJobParams) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if params.database is None else {"database": params.database}
    if params.job is None:
        return {**attributes, "discover": True}
    job: dict[str, Any] = {"name": params.job}
    if params.script is not None:
        job["start"] = {"script": params.script}
    return {**attributes, "jobs": [job]}
