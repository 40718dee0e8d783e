"""The rules that the simulation does not have, and the tests that have to notice when one of them is broken.

They concern the program, Spark, threads and Dagster; each concept has a list of its own. A mutation is caught when its
tests pass without it and fail with it; they are run in a process of their own, from the root of the checkout.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from tests.mutations.adoption_mutations import ADOPTION_MUTATIONS
from tests.mutations.checkpoint_run_mutations import CHECKPOINT_RUN_MUTATIONS
from tests.mutations.command_mutations import COMMAND_MUTATIONS
from tests.mutations.compatibility_mutations import COMPATIBILITY_MUTATIONS
from tests.mutations.dagster_mutations import DAGSTER_MUTATIONS
from tests.mutations.delivery_mutations import DELIVERY_MUTATIONS
from tests.mutations.ending_mutations import ENDING_MUTATIONS
from tests.mutations.history_mutations import HISTORY_MUTATIONS
from tests.mutations.live_mutations import TESTED_LIVE_MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.preflight_mutations import PREFLIGHT_MUTATIONS
from tests.mutations.query_mutations import QUERY_MUTATIONS
from tests.mutations.request_mutations import TESTED_REQUEST_MUTATIONS
from tests.mutations.restore_mutations import RESTORE_MUTATIONS
from tests.mutations.savepoint_mutations import SAVEPOINT_MUTATIONS
from tests.mutations.sending_mutations import SENDING_MUTATIONS
from tests.mutations.sink_mutations import SINK_MUTATIONS
from tests.mutations.storage_mutations import STORAGE_MUTATIONS
from tests.mutations.supervision_mutations import SUPERVISION_MUTATIONS
from tests.mutations.wake_mutations import TESTED_WAKE_MUTATIONS
from tests.patience import SECONDS

__all__ = ["TESTED_MUTATIONS", "fails", "main", "passes"]

# Exit codes of pytest.
_PASSED: Final = 0
_FAILED: Final = 1
_BROKEN: Final = "--broken"
# How long a test waits that is to fail, and may do so by waiting in vain.
_PATIENCE_SECONDS: Final = 60

#: Each with the tests that catch it.
TESTED_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    *ADOPTION_MUTATIONS,
    *CHECKPOINT_RUN_MUTATIONS,
    *COMMAND_MUTATIONS,
    *COMPATIBILITY_MUTATIONS,
    *DAGSTER_MUTATIONS,
    *DELIVERY_MUTATIONS,
    *ENDING_MUTATIONS,
    *HISTORY_MUTATIONS,
    *PREFLIGHT_MUTATIONS,
    *QUERY_MUTATIONS,
    *RESTORE_MUTATIONS,
    *SINK_MUTATIONS,
    *SAVEPOINT_MUTATIONS,
    *STORAGE_MUTATIONS,
    *SENDING_MUTATIONS,
    *SUPERVISION_MUTATIONS,
    *TESTED_REQUEST_MUTATIONS,
    *TESTED_LIVE_MUTATIONS,
    *TESTED_WAKE_MUTATIONS,
)


def passes(numbers: Sequence[int]) -> bool:
    """Run the tests of these mutations without any; return whether all of them pass.

    Raises:
        subprocess.CalledProcessError: they could not be run.
    """
    return _exit_code(*map(str, numbers)) == _PASSED


def fails(number: int) -> bool:
    """Run the tests of a mutation with it; return whether one fails.

    Raises:
        subprocess.CalledProcessError: they could not be run.
    """
    return _exit_code(_BROKEN, str(number), patience=_PATIENCE_SECONDS) == _FAILED


def _exit_code(*arguments: str, patience: int = SECONDS) -> int:
    command = [sys.executable, "-m", "tests.mutations.tested", *arguments]
    environment = {**os.environ, "COORD_TEST_PATIENCE": str(patience)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (_PASSED, _FAILED):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests of numbered mutations in this process, after ``--broken`` with the mutation; return their code."""
    chosen = [TESTED_MUTATIONS[int(number)] for number in arguments if number != _BROKEN]
    with contextlib.ExitStack() as stack:
        if _BROKEN in arguments:
            [(mutation, _)] = chosen
            stack.enter_context(mutation.applied())
        return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *sorted({tests for _, tests in chosen})])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads that a test with a mutation has left behind may wait for long
