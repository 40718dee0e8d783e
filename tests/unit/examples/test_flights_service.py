"""The command line of the flights as a service; the job itself is the demo's."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.data import DAYS
from examples.flights.service import PORT, options_of


def test_the_whole_year_at_the_known_port_with_checkpoints_by_itself() -> None:
    options = options_of(["--work", "flights"])
    assert options.work == Path.cwd() / "flights"
    assert (options.days, options.port, options.checkpoint_seconds) == (DAYS, PORT, 60.0)
    assert options.control is None, "the control database is what COORD_CONTROL says"
    assert options.chaos == 0.0


@pytest.mark.parametrize(
    "arguments",
    [[], ["--work", "x", "--days", "0"], ["--work", "x", "--days", "366"], ["--work", "x", "--port", "any"]],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        options_of(arguments)
    assert "usage:" in capsys.readouterr().err
