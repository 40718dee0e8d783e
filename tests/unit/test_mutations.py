"""Each mutation still fits the code that it breaks, and names tests that exist; if they notice is for the night."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutations.mutation import Mutation
from tests.mutations.run import MUTATIONS
from tests.mutations.tested import TESTED_MUTATIONS
from tests.places import CHECKOUT

ALL = [*MUTATIONS, *(mutation for mutation, _ in TESTED_MUTATIONS)]


@pytest.mark.parametrize("mutation", ALL, ids=lambda each: each.name)
def test_what_it_breaks_is_there(mutation: Mutation) -> None:
    with mutation.applied():
        pass


def test_each_has_a_name_of_its_own() -> None:
    counted = Counter(each.name for each in ALL)
    assert [name for name, number in counted.items() if number > 1] == []


@pytest.mark.parametrize("tests", sorted({part for _, tests in TESTED_MUTATIONS for part in tests.split()}))
def test_the_tests_that_notice_it_are_there(tests: str) -> None:
    file, _, name = tests.partition("::")
    text = (CHECKOUT / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE)
