"""``StreamingJobComponent``: streaming jobs in Dagster with a few lines of YAML.

The control database knows the jobs, their queries and their operators, but a code location must load without it. So
it is read only when the component's state is refreshed (by ``dg dev`` and ``dagster dev`` on every load, elsewhere by
``dg utils refresh-defs-state``), and never by a run worker. If the database cannot be reached, the refresh takes a few
seconds, logs one warning and keeps the previous state.

Threads: any thread that loads definitions. The database is read on a separate thread, so that a server that does not
answer cannot block the code location.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
from pathlib import Path
from typing import Final

import dagster as dg
from dagster._core.storage.defs_state.base import DefsStateStorage
from dagster.components.utils.defs_state import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType
from pydantic import Field, field_validator

from coord_control.dagster.definitions.factory import build_streaming_definitions
from coord_control.dagster.definitions.scaffolder import StreamingJobScaffolder
from coord_control.dagster.facts import DatabaseFacts, from_json, read_facts, to_json
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.runs.patience import within
from coord_control.dagster.spec import ControlPlaneSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError

__all__ = ["StreamingJobComponent", "refreshed_facts"]

_log = logging.getLogger("coord_control.dagster")

#: How long loading waits for the database in total; short, because a user is waiting.
_READ_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_NAME_LENGTH: Final = 40
_ACTOR: Final = "dagster:definitions"


@dg.scaffold_with(StreamingJobScaffolder)
class StreamingJobComponent(dg.StateBackedComponent, ControlPlaneSpec):
    """The streaming jobs of one control database: assets, checks, schedules, sensors and jobs.

    ``dg scaffold defs`` takes ``--database URL``, ``--job NAME`` and ``--script PATH`` (the program of that job);
    without ``--job`` the definitions are of all jobs of the database.

    Attributes:
        translator: A subclass of ``StreamingJobTranslator``, as ``package.module:Class``.
        defs_state: Where to keep the state of the database between refreshes.
    """

    translator: str | None = None
    defs_state: ResolvedDefsStateConfig = Field(default_factory=DefsStateConfigArgs.local_filesystem)

    @field_validator("translator")
    @classmethod
    def _names_a_translator(cls, name: str | None) -> str | None:
        if name is not None:
            _translator(name)
        return name

    @property
    def defs_state_config(self) -> DefsStateConfig:
        return DefsStateConfig.from_args(self.defs_state, default_key=f"StreamingJobComponent[{self._place()}]")

    def write_state_to_path(self, state_path: Path) -> None:
        """Write the state of the database to a file, or keep the existing file if the database cannot be read."""
        facts = refreshed_facts(self.database, seconds=_READ_SECONDS)
        if facts is not None:
            _replace(state_path, to_json(facts))
        elif not state_path.exists() and not self._restore_last_version(state_path):
            _replace(state_path, to_json(DatabaseFacts(())))

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        """Build the definitions from the YAML and the stored state of the database."""
        translator = None if self.translator is None else _translator(self.translator)()
        return build_streaming_definitions(self, facts=_read(state_path), translator=translator)

    def _restore_last_version(self, state_path: Path) -> bool:
        # A versioned storage provides an empty folder for each refresh: download the last version.
        config, storage = self.defs_state_config, DefsStateStorage.get()
        info = storage.get_latest_defs_state_info() if storage is not None else None
        last = info.info_mapping.get(config.key) if info is not None else None
        versioned = DefsStateManagementType.VERSIONED_STATE_STORAGE
        if storage is None or last is None or not (config.management_type == last.management_type == versioned):
            return False
        storage.download_state_to_path(config.key, last.version, state_path)
        return True

    def _place(self) -> str:
        # Identifies the database, so that the state of one is not used for another; short enough for a folder name.
        try:
            with ControlPlaneResource(database=self.database or "").client(_ACTOR) as client:
                address = client.url
        except CoordControlError:
            return "none"
        name = re.sub(r"[^A-Za-z0-9._-]", "", address.rpartition("/")[2].partition("?")[0])[:_NAME_LENGTH]
        return f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def refreshed_facts(database: str | None, *, seconds: float) -> DatabaseFacts | None:
    """Read the current facts from a control database; log a warning and return None if it cannot be read.

    The database is neither created nor changed.

    Args:
        database: the database URL; defaults to ``COORD_CONTROL``, or else to the user's embedded database.
        seconds: how long to wait for the database.
    """
    try:
        return within(seconds, lambda: _ask(database))
    except (CoordControlError, TimeoutError) as error:
        _log.warning("the control database could not be read, its last known state is used: %s", error)
        return None


def _ask(database: str | None) -> DatabaseFacts:
    with ControlPlaneResource(database=database or "").client(_ACTOR, retry_seconds=_RETRY_SECONDS) as client:
        return read_facts(client)


def _read(state_path: Path | None) -> DatabaseFacts | None:
    if state_path is None:
        return None
    try:
        return from_json(state_path.read_text(encoding="utf-8"))
    except ValueError as error:
        _log.warning("the stored state of the control database cannot be read and will be refreshed: %s", error)
        return None


def _replace(path: Path, text: str) -> None:
    # Atomic, because another process may be loading the file.
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _translator(name: str) -> type[StreamingJobTranslator]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be imported ({error}); write it as package.module:Class") from error
    if not (isinstance(found, type) and issubclass(found, StreamingJobTranslator)):
        raise ValueError(f"{name!r} is not a subclass of coord_control.dagster.StreamingJobTranslator")
    return found
