"""One line of what is looked at before something is done: what was found, whether it can work, and the way out.

Threads: values.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from coord_control.errors import RestoreRefused

__all__ = ["ALLOW", "ALLOW_MISSING_INPUT", "ROLL_BACK_SINKS", "SKIP_EPOCHS", "Check", "Verdict", "refusal", "refuse"]

#: The way out when operators or queries have come or gone.
ALLOW: Final = "restore with --allow-non-restored-state (allow_non_restored_state=True)"
#: The way out when the rows of files that are gone may be lost.
ALLOW_MISSING_INPUT: Final = "continue without their rows: --allow-missing-input (allow_missing_input=True)"
#: The way out when a sink holds what a restore would write again.
ROLL_BACK_SINKS: Final = "set the sinks back too: --roll-back-sinks (roll_back_sinks=True)"
#: The way out when the rows of epochs that a sink skips may be lost.
SKIP_EPOCHS: Final = (
    "accept that these epochs are not written again: --accept-skipped-epochs (accept_skipped_epochs=True)"
)


class Verdict(enum.Enum):
    """What a check has found."""

    OK = "ok"
    WARNING = "warning"  #: it works; know what it means
    REFUSED = "refused"  #: it cannot work, or would lose something


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table.

    Attributes:
        subject: the query or operator that it is about; empty: all of it.
        way_out: what to do, when it is not ok.
        is_damage: it is refused because what is stored is damaged, not because of what was asked for.
    """

    name: str
    subject: str
    verdict: Verdict
    found: str
    way_out: str = ""
    is_damage: bool = False

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the check that :meth:`to_json` has described."""
        return cls(**{**fields, "verdict": Verdict(fields["verdict"])})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}

    def __str__(self) -> str:
        subject = f" of {self.subject}" if self.subject else ""
        way_out = f" ({self.way_out})" if self.way_out else ""
        return f"{self.name}{subject}: {self.found}{way_out}"


def refuse(checkpoint: str, checks: Iterable[Check], *, is_applied: bool = False, can_undo: bool = False) -> None:
    """Raise if a check refuses.

    Args:
        is_applied: the restore has taken place without the program.
        can_undo: it can be undone.

    Raises:
        RestoreRefused: with all that was found.
    """
    if (error := refusal(checkpoint, checks, is_applied=is_applied, can_undo=can_undo)) is not None:
        raise error


def refusal(
    checkpoint: str, checks: Iterable[Check], *, is_applied: bool = False, can_undo: bool = False
) -> RestoreRefused | None:
    """Return what :func:`refuse` would raise."""
    found = list(checks)
    refused = [check for check in found if check.verdict is Verdict.REFUSED]
    if not refused:
        return None
    is_damaged = any(check.is_damage for check in refused)
    return RestoreRefused(
        checkpoint,
        list(map(str, refused)),
        checks=[check.to_json() for check in found],
        is_damaged=is_damaged,
        is_applied=is_applied,
        can_undo=can_undo,
    )
