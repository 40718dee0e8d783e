"""What a Spark checkpoint directory says of its stateful operators, for metadata, for people, and for a restore.

Spark describes each operator in ``state/<operator>/_metadata``: one file, ``metadata``, written at the first start;
or (``transformWithState``, join format 3) ``v2/<epoch>``, one for each start and the newest one up to an epoch
counts. The schemas lie in ``_metadata/schema`` of the stores of partition 0, or in
``_stateSchema/<store>/<epoch>_<id>``.

The second kind names its schema files with *absolute* paths, and Spark follows them when the directory has been copied:
the copy reads schemas of the old place, and ``transformWithState`` does not start any more when that is gone. So code
that puts a checkpoint in another place must pass each file through :func:`relocated`.

The number of partitions in a description is what Spark was configured with. An operator that needs all rows in one
place (a global aggregate, a limit) has partition 0 alone.

Threads: pure functions, except for the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from coord_control.durable.spark_layout.query_logs import CommitEntry, Read, parse_versioned_json, read_file
from coord_control.durable.spark_layout.state_files import DEFAULT_STORE, Stores
from coord_control.errors import DamagedRecord

__all__ = [
    "OperatorDescription",
    "describe",
    "is_description",
    "is_description_of",
    "partitions_of",
    "relocated",
]

Provider = Literal["hdfs", "rocksdb", "unknown"]

#: What Spark pins in the offset log at the first start.
PARTITIONS_SETTING: Final = "spark.sql.shuffle.partitions"
PROVIDER_SETTING: Final = "spark.sql.streaming.stateStore.providerClass"

# Part of every path that one of the next two matches: rules out a hundred thousand others faster.
_MARK: Final = "/_"
_UNVERSIONED: Final = re.compile(r"state/(\d+)/(?:_metadata/metadata|\d+/(?:[^/]+/)?_metadata/schema)")
_VERSIONED: Final = re.compile(r"state/(\d+)/(?:_metadata/v2/(\d+)|_stateSchema/[^/]+/(\d+)_[^/]+)")
_OPERATOR_FILE: Final = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/(\d+))")
_SCHEMA_BELOW: Final = re.compile(r".*(/state/\d+/_stateSchema/[^/]+/[^/]+)")
_NAMES: Final[dict[str, Provider]] = {"HDFSBackedStateStoreProvider": "hdfs", "RocksDBStateStoreProvider": "rocksdb"}
_KINDS: Final[dict[str, Provider]] = {"delta": "hdfs", "snapshot": "hdfs", "changelog": "rocksdb", "zip": "rocksdb"}


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """One stateful operator of a query at one epoch."""

    id: int
    name: str  # Spark's: stateStoreSave, dedupe, symmetricHashJoin, ...; empty: written by a Spark older than 3.5
    provider: Provider
    provider_class: str  # as pinned in the offset log; empty when it is not there
    partitions: int  # that hold state
    stores: tuple[str, ...]
    checkpoint_format: int  # 1, or 2: files with unique ids
    description_version: int  # 2: versioned, with schema evolution and column families; 0: there is none
    properties: Mapping[str, Any]  # only with version 2: state variables, output mode, ...


def describe(
    stores: Stores,
    paths: Iterable[str],
    epoch: int,
    read: Read,
    settings: Mapping[str, str],
    commit: CommitEntry,
) -> list[OperatorDescription]:
    """Describe all operators at a committed epoch, ordered by id.

    Args:
        paths: the visible files of the listing.
        settings: those of the epoch's offset log entry.
        commit: the epoch's commit log entry.

    Raises:
        StateFileMissing: a description is gone.
        DamagedRecord: a description cannot be understood.
    """
    described = _newest_descriptions(paths, epoch)
    operators = sorted({*described, *(key.operator for key in stores)})
    return [_describe(stores, op, described.get(op), read, settings, commit) for op in operators]


def partitions_of(stores: Stores, operator: int, settings: Mapping[str, str], commit: CommitEntry) -> frozenset[int]:
    """Say which partitions of an operator hold its state at an epoch, whether their files are there or not."""
    if commit.state_ids is not None:
        return frozenset(range(len(commit.state_ids.get(operator, ()))))
    present = frozenset(key.partition for key in stores.of_operator(operator))
    configured = settings.get(PARTITIONS_SETTING, "")
    if not configured.isdigit() or present == {0}:
        return present
    return frozenset(range(int(configured)))


def is_description(path: str) -> bool:
    """Return whether a file describes an operator or a schema."""
    return _MARK in path and (_UNVERSIONED.fullmatch(path) is not None or _VERSIONED.fullmatch(path) is not None)


def is_description_of(path: str, epoch: int) -> bool:
    """Return whether a file describes an operator or a schema, and was written up to an epoch."""
    if _MARK not in path:
        return False
    if match := _VERSIONED.fullmatch(path):
        return int(match[2] or match[3]) <= epoch
    return _UNVERSIONED.fullmatch(path) is not None


def relocated(path: str, content: bytes, checkpoint: str) -> bytes:
    """Give a file of a checkpoint the content that it must have in another place.

    Args:
        path: relative to the checkpoint directory.
        checkpoint: the new Spark checkpoint directory, as a path or URI that Spark understands.

    Returns:
        The content itself for every file but a versioned description of an operator.

    Raises:
        DamagedRecord: the description cannot be understood.
    """
    match = _OPERATOR_FILE.fullmatch(path)
    if match is None or match[2] is None:
        return content
    version, description = parse_versioned_json(path, content)
    for store in _stores_in(path, description):
        old = store.get("stateSchemaFilePaths")
        if isinstance(old, list):
            store["stateSchemaFilePaths"] = [_moved(path, str(name), checkpoint) for name in old]
    return f"v{version}\n{json.dumps(description, separators=(',', ':'))}".encode()


def _moved(path: str, schema: str, checkpoint: str) -> str:
    match = _SCHEMA_BELOW.fullmatch(schema)
    if match is None:
        raise DamagedRecord(path, f"it refers to a schema outside a checkpoint directory, {schema}")
    return checkpoint.rstrip("/") + match[1]


def _newest_descriptions(paths: Iterable[str], epoch: int) -> dict[int, str]:
    found: dict[int, tuple[int, str]] = {}
    for path in paths:
        match = _OPERATOR_FILE.fullmatch(path)
        if match is None or not is_description_of(path, epoch):
            continue
        candidate = (-1 if match[2] is None else int(match[2]), path)
        found[int(match[1])] = max(candidate, found.get(int(match[1]), candidate))
    return {operator: path for operator, (_, path) in found.items()}


def _describe(
    stores: Stores,
    operator: int,
    path: str | None,
    read: Read,
    settings: Mapping[str, str],
    commit: CommitEntry,
) -> OperatorDescription:
    version, fields = (0, {}) if path is None else parse_versioned_json(path, read_file(read, path))
    info = fields.get("operatorInfo") or {}
    names = {key.name for key in stores.of_operator(operator)}
    if path is not None:
        names |= {str(store.get("storeName", DEFAULT_STORE)) for store in _stores_in(path, fields)}
    provider_class = settings.get(PROVIDER_SETTING, "")
    return OperatorDescription(
        id=operator,
        name=str(info.get("operatorName", "")),
        provider=_NAMES.get(provider_class.rpartition(".")[2]) or _guess(stores, operator),
        provider_class=provider_class,
        partitions=len(partitions_of(stores, operator, settings, commit)),
        stores=tuple(sorted(names)),
        checkpoint_format=1 if commit.state_ids is None else 2,
        description_version=version,
        properties=_properties(fields.get("operatorPropertiesJson")),
    )


def _stores_in(path: str, description: Mapping[str, Any]) -> list[dict[str, Any]]:
    stores = description.get("stateStoreInfo")
    if not isinstance(stores, list) or not all(isinstance(store, dict) for store in stores):
        raise DamagedRecord(path, "it has no stateStoreInfo, the list of the operator's stores")
    return stores


def _properties(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _guess(stores: Stores, operator: int) -> Provider:
    kinds = {kind for key in stores.of_operator(operator) for kind in stores[key].kinds()}
    providers = {_KINDS[kind] for kind in kinds}
    return providers.pop() if len(providers) == 1 else "unknown"
