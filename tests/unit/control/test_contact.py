"""What the log says of a database that is away, and of an agent that fails for another reason."""

from __future__ import annotations

import logging

import pytest

from coord_control.control.agent.contact import Contact
from coord_control.errors import CoordControlError


class _Away(CoordControlError):
    pass


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coord_control.control")


def test_an_outage_of_the_database_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact("sqlite:///c.db")
    for _ in range(3):
        contact.failed(_Away("it cannot be opened"), 0.0)
    assert (contact.is_lost, contact.is_failing, contact.failures) == (True, True, 3)
    assert not contact.is_due(0.1)
    contact.worked()
    assert (contact.is_lost, contact.is_failing) == (False, False)
    began, ended = caplog.messages
    assert began.endswith("records are written when the database is back")
    assert ended == "= the control database sqlite:///c.db is back"


def test_another_failure_is_not_called_an_outage_of_the_database(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact("sqlite:///c.db")
    for _ in range(3):
        contact.failed(_Away("the storage cannot be read"), 0.0, is_database=False)
    assert (contact.is_lost, contact.is_failing, contact.failures) == (False, True, 0)
    assert not contact.is_due(0.1)
    contact.worked()
    assert caplog.messages == ["x the storage cannot be read; the job keeps running, and its agent tries again"]


def test_a_database_that_is_lost_while_the_agent_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact("sqlite:///c.db")
    contact.failed(_Away("the storage cannot be read"), 0.0, is_database=False)
    contact.failed(_Away("it cannot be opened"), 1.0)
    contact.worked()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
