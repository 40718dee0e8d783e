"""What a driver reports to its supervisor."""

from __future__ import annotations

from coord_control.driver_report import DriverReport, StartedJob, encode_report, parse_reports


def _job(name: str, generation: int) -> StartedJob:
    return StartedJob(name=name, generation=generation, control="postgresql://user:secret@host/name")


def test_all_lines_count_together_and_the_newest_driver_of_a_job() -> None:
    lines = [
        DriverReport(jobs=(_job("a", 1),)),
        DriverReport(jobs=(_job("b", 4),)),
        DriverReport(jobs=(_job("a", 2),)),
        DriverReport(error="ValueError: ü"),
    ]
    found = parse_reports(b"".join(map(encode_report, lines)))

    assert found == DriverReport(error="ValueError: ü", jobs=(_job("a", 2), _job("b", 4)))


def test_nothing_and_a_line_that_was_cut_off_say_nothing() -> None:
    whole = encode_report(DriverReport(jobs=(_job("a", 1),)))

    assert parse_reports(b"") == DriverReport()
    assert parse_reports(whole + whole[:20]) == DriverReport(jobs=(_job("a", 1),))
