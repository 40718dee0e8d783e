"""The rules that the simulation does not have, and the tests that have to notice when one of them is broken.

They concern the program, Spark, threads and Dagster; each concept has a list of its own. A mutation is caught when its
tests pass without it and fail with it; they are run in a process of their own, from the root of the checkout.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tests.mutations.checkpoint_run_mutations import CHECKPOINT_RUN_MUTATIONS
from tests.mutations.command_mutations import COMMAND_MUTATIONS
from tests.mutations.dagster_mutations import DAGSTER_MUTATIONS
from tests.mutations.ending_mutations import ENDING_MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.query_mutations import QUERY_MUTATIONS
from tests.mutations.restore_mutations import RESTORE_MUTATIONS
from tests.mutations.savepoint_mutations import SAVEPOINT_MUTATIONS
from tests.mutations.sending_mutations import SENDING_MUTATIONS

__all__ = ["TESTED_MUTATIONS", "fails", "main"]

# Exit codes of pytest.
_PASSED: Final = 0
_FAILED: Final = 1

#: Each with the tests that catch it.
TESTED_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    *CHECKPOINT_RUN_MUTATIONS,
    *COMMAND_MUTATIONS,
    *DAGSTER_MUTATIONS,
    *ENDING_MUTATIONS,
    *QUERY_MUTATIONS,
    *RESTORE_MUTATIONS,
    *SAVEPOINT_MUTATIONS,
    *SENDING_MUTATIONS,
)


def fails(number: int | None) -> bool:
    """Run the tests of a mutation with it, or with ``None`` all tests without any; return whether one fails.

    Raises:
        subprocess.CalledProcessError: they could not be run.
    """
    arguments = [] if number is None else [str(number)]
    command = [sys.executable, "-m", "tests.mutations.tested", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (_PASSED, _FAILED):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.returncode == _FAILED


def main(arguments: Sequence[str]) -> int:
    """Run tests in this process; returns pytest's exit code."""
    import pytest  # who uses the rest of this package need not have it

    options = ["-x", "-q", "-p", "no:cacheprovider"]
    if not arguments:
        return pytest.main([*options, *sorted({tests for _, tests in TESTED_MUTATIONS})])
    mutation, tests = TESTED_MUTATIONS[int(arguments[0])]
    with mutation.applied():
        return pytest.main([*options, tests])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
