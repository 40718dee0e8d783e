"""Whether rules that are written as functions notice a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.mutations.mutation import Mutation


def is_noticed(bug: Mutation, rules: Iterable[Callable[[], None]]) -> bool:
    """Whether any of these rules fails with the bug."""
    with bug.applied():
        for rule in rules:
            try:
                rule()
            except (Exception, pytest.fail.Exception):
                return True
    return False
