"""Creates with one winner on every storage, and claims that every driver sees.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control import environment
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.pins import LiveFiles
from coord_control.durable.files.objects import ObjectFiles
from coord_control.durable.job_folder import generations
from tests.mutations.mutation import Mutation

__all__ = ["STORAGE_MUTATIONS"]

_CLAIMS: Final = "tests/unit/durable/test_generations.py::test_equal_drivers_of_one_moment_are_told_apart"
_COMMANDS: Final = (
    "tests/unit/durable/test_offline_savepoint.py::test_a_driver_that_starts_at_the_same_moment_is_left_alone"
)
_DOCTOR: Final = "tests/unit/test_environment.py"
_OBJECTS: Final = "tests/unit/durable/test_objects.py"
_REQUESTS: Final = "tests/unit/durable/test_checkpoint_requests.py"

#: Each with the tests that catch it.
STORAGE_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "approve of a storage that looks first and writes later",
            environment._race,
            "len(won) == 2",
            "len(won) == 3",
        ),
        _DOCTOR,
    ),
    (
        Mutation("create an object without a condition", ObjectFiles.create, 'mode="create", ', ""),
        _OBJECTS,
    ),
    (
        Mutation(
            "copy an object that is listed under another name",
            ObjectFiles.link_all,
            "join(target, pair[1])",
            "join(target, pair[0])",
        ),
        _OBJECTS,
    ),
    (
        Mutation(
            "approve of a mount that shows what a file held before",
            environment.check_mount,
            'if stale is None or stale not in options.split(","):',
            "if True:",
        ),
        _DOCTOR,
    ),
    (
        Mutation(
            "look at the mount of a folder further up",
            environment.check_mount,
            "key=len, default",
            "key=lambda place: -len(place), default",
        ),
        _DOCTOR,
    ),
    (
        Mutation(
            "take a file that was replaced for what an earlier checkpoint has read",
            vars(LiveFiles)["of"].__func__,
            "(known or {}).get((path, etag))",
            "next((content for (name, _), content in (known or {}).items() if name == path), None)",
        ),
        _REQUESTS,
    ),
    (
        Mutation(
            "copy into a folder that a newer driver may have claimed",
            CheckpointStore._pin,
            "if record.requested_target is not None:",
            "if False:",
        ),
        _REQUESTS,
    ),
    (
        Mutation(
            "let a command look at the newest claim once only",
            generations.claim,
            "if look_at is not None:",
            "if look_at is not None and not contests:",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "give the claims of two drivers one token",
            generations.claim,
            "token = secrets.token_hex(16)",
            'token = "0"',
        ),
        _CLAIMS,
    ),
)
