"""A Spark checkpoint directory as a dictionary, for tests of what layout reads in it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coord_control.durable.spark_layout.layout import layout_of
from coord_control.durable.spark_layout.stateful_operators import OperatorDescription
from coord_control.ids import Epoch

__all__ = ["Directory", "described", "index", "versioned"]

HDFS: Final = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Directory:
    """Files by relative path; ``gone`` ones are listed, but cannot be read any more."""

    def __init__(self, *empty: str) -> None:
        self.files: dict[str, bytes] = dict.fromkeys(empty, b"")
        self.gone: set[str] = set()

    def add(self, *names: str, content: bytes = b"") -> Directory:
        self.files.update(dict.fromkeys(names, content))
        return self

    def without(self, *names: str) -> Directory:
        copy = Directory()
        copy.files = {name: content for name, content in self.files.items() if name not in names}
        return copy

    def epochs(
        self,
        last: int,
        offsets: Sequence[str] = (),
        partitions: int = 2,
        provider: str = HDFS,
        ids: Mapping[int, Any] | None = None,
    ) -> Directory:
        """Add both logs from 0 on; `offsets` stand in the last entry, `ids` are stateUniqueIds by epoch."""
        conf = {
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.streaming.stateStore.providerClass": provider,
        }
        for epoch in range(last + 1):
            lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": conf}), *offsets]
            self.files[f"offsets/{epoch}"] = "\n".join(lines).encode()
            if ids is None:
                self.files[f"commits/{epoch}"] = versioned(1, {"nextBatchWatermarkMs": 0})
            else:
                self.files[f"commits/{epoch}"] = versioned(2, {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids[epoch]})
        return self

    def read(self, path: str) -> bytes:
        if path in self.gone:
            raise FileNotFoundError(path)
        return self.files[path]

    def needed(self, epoch: int, below: str = "", *, planned: int | None = None) -> list[str]:
        """The files that `layout_of` names below a folder, relative to it."""
        listing = {path: len(content) for path, content in self.files.items()}
        names = layout_of(listing, Epoch(epoch), self.read, None if planned is None else Epoch(planned)).files
        return [name.removeprefix(below) for name in names if name.startswith(below)]

    def operators(self, epoch: int) -> list[OperatorDescription]:
        listing = {path: len(content) for path, content in self.files.items()}
        return list(layout_of(listing, Epoch(epoch), self.read).operators)


def versioned(version: int, value: object) -> bytes:
    return f"v{version}\n{json.dumps(value)}".encode()


def described(name: str = "stateStoreSave", stores: Sequence[str] = ("default",), partitions: int = 2) -> bytes:
    """The content of state/<operator>/_metadata/metadata."""
    infos = [{"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores]
    return versioned(1, {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": infos})


def index(ssts: Sequence[str] = (), logs: Sequence[str] = ()) -> bytes:
    """A RocksDB snapshot that shares these files with others."""
    fields: dict[str, Any] = {
        "sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": name, "sizeBytes": 1} for name in ssts],
        "numKeys": 1,
    }
    if logs:  # Spark leaves the field out when there are none
        fields["logFiles"] = [{"localFileName": "1.log", "dfsLogFileName": name, "sizeBytes": 1} for name in logs]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", versioned(1, fields))
    return content.getvalue()
