"""What a driver reports to its supervisor, on the lifeline: the jobs that it runs, and the error that ends it.

One JSON object per line. The supervisor reads them when the driver has ended, so a driver never waits for it: what does
not fit into the socket's buffer (hundreds of lines) is lost.

Threads: any; pure functions.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["DriverReport", "StartedJob", "encode_report", "parse_reports"]


class StartedJob(BaseModel):
    """A job that a driver has begun.

    Attributes:
        control: the address of its control database, with the password that it may contain.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    generation: int
    control: str


class DriverReport(BaseModel):
    """One line, or what several of them say together.

    Attributes:
        error: what ended the script, in one line.
        jobs: the newest driver of each.
    """

    model_config = ConfigDict(frozen=True)

    error: str | None = None
    jobs: tuple[StartedJob, ...] = ()


_NOTHING: Final = DriverReport()


def encode_report(report: DriverReport) -> bytes:
    """Return a report as one line."""
    return report.model_dump_json(exclude_defaults=True).encode() + b"\n"


def parse_reports(content: bytes) -> DriverReport:
    """Return what all lines say together; a line that was cut off says nothing."""
    jobs: dict[str, StartedJob] = {}
    error = None
    for line in content.splitlines():
        found = _parse(line)
        jobs |= {each.name: each for each in found.jobs}
        error = found.error or error
    return DriverReport(error=error, jobs=tuple(jobs.values()))


def _parse(line: bytes) -> DriverReport:
    try:
        return DriverReport.model_validate_json(line)
    except ValidationError:
        return _NOTHING
