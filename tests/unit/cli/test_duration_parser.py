from __future__ import annotations

import pytest
import typer

from coord_control.cli.duration_parser import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
        (" 7 s ", 7.0),
        (60.0, 60.0),
        ("0", 0),
    ],
)
def test_a_duration(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1w", "s", "1e3", "nan", "1 2"])
def test_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        parse_seconds(text)
