"""What a job costs on S3: requests, counted in the log of a real server.

*epochs*: the query of the other benchmarks with Spark's checkpoint on S3 and no job; with a job whose operator
has nothing to do; with one whose epochs change state and pass events both ways. Requests below Spark's own checkpoint
are Spark's. The driver also looks at its claim every half second, whatever it does: those reads are reported by second,
not by epoch. *checkpoints*: of a query with state in RocksDB, each after an epoch, and savepoints of it while it is
idle; in a bucket whose objects have no checksums. *listing*: a folder of many objects, through Hadoop and without a
JVM.

There are as many cores as subtasks: their acks share one write. With fewer cores each further wave of subtasks is one
write more.

Needs the jars of ``make connectors``.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import coord_control as cc
from benchmarks import query
from benchmarks.checkpoint_queries import Part, add_keys, start_keys, use_rocksdb
from benchmarks.report import Goal, at_most, main
from benchmarks.session import session
from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.objects import ObjectFiles
from coord_control.spark.hadoop_files import HadoopFiles
from scripts.connectors import jars
from tests.s3_kit import Request, S3Server

_WARM_UP: Final = 2  #: epochs that do not count
_EPOCHS: Final = 10
_CHECKPOINTS: Final = 5
_KEYS: Final = 20_000
_MORE_KEYS: Final = 1_000
_OBJECTS: Final = 10_000
_OBJECTS_IN_AN_ANSWER: Final = 1_000
_WAIT_SECONDS: Final = 300.0
_WATCH_PER_SECOND: Final = 2.0

_SPARK: Final = re.compile(r"/(spark|plain)/")
#: Reads of a RocksDB snapshot's index, one for each state store, and of new files for their checksums.
_INDEX: Final = re.compile(r"GET .*/spark/state/.*zip")
_CHECKSUM: Final = re.compile(r"GET .*/(shared|savepoints)/.*/(offsets|commits|sources|state)/")
_CLAIM: Final = re.compile(r"/generations/\d+\.json$")


def objects(quick: bool) -> tuple[Sequence[Goal], dict[str, Any]]:
    """Count the requests of epochs, checkpoints, savepoints and listings on S3."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars('s3a')))} pyspark-shell"
    goals: list[Goal] = []
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder, "server"))
        os.environ.update(server.environment)
        try:
            with session(cores=query.SUBTASKS) as spark:
                for name, value in server.settings.items():
                    spark.conf.set(name, value)
                for each in (_epochs, _checkpoints, _listing):
                    part = each(spark, server, quick)
                    goals += part.goals
                    numbers[each.__name__.lstrip("_")] = part.numbers
        finally:
            server.stop()
    return goals, numbers


def _epochs(spark: SparkSession, server: S3Server, quick: bool) -> Part:
    root = f"s3a://{server.bucket}/epochs"
    count = 2 if quick else _EPOCHS
    plain = query.start_plain(spark, join(root, "plain", "checkpoint"))
    found = {"plain": _counted(server, plain, count, "plain")}
    variants = {"idle": (query.Silent(), query.idle), "busy": (query.Talkative(), query.busy)}
    for name, (coordinator, function) in variants.items():
        with cc.Job(name, spark, root=root) as job:
            started = query.start_coordinated(spark, job, coordinator, function)
            found[name] = _counted(server, started, count, name)
    ours = {name: each["ours"]["writes"] + each["ours"]["reads"] for name, each in found.items()}
    return Part(
        [
            at_most("an epoch with an idle control plane", ours["idle"], 0, "requests"),
            at_most("an epoch that changes state", found["busy"]["ours"]["writes"], 2, "writes"),
            at_most("claims read by an idle job", found["idle"]["claims_per_second"], 1.1 * _WATCH_PER_SECOND, "/s"),
        ],
        found,
    )


def _counted(server: S3Server, started: StreamingQuery, count: int, job: str) -> dict[str, Any]:
    """Count the requests between two commits of Spark, in the order of the server's log; returns numbers per epoch."""
    began = time.monotonic()
    _await_epoch(started, _WARM_UP + count + 1)
    seconds = time.monotonic() - began
    started.stop()
    requests = [each for each in server.requests() if f"/epochs/{job}/" in _place(each)]
    first, last = (_commit(requests, epoch) for epoch in (_WARM_UP, _WARM_UP + count))
    claims = [each for each in requests if _CLAIM.search(each.path)]
    others = [each for each in requests[first + 1 : last + 1] if each not in claims]
    by_spark = [each for each in others if _SPARK.search(_place(each))]
    ours = [each for each in others if not _SPARK.search(_place(each))]
    return {
        "ours": {name: round(number / count, 2) for name, number in _by_use(ours).items()},
        "spark": {name: round(number / count, 2) for name, number in _by_use(by_spark).items()},
        "claims_per_second": round(len(claims) / seconds, 2),
        "names": dict(Counter(f"{each.kind} {_name(each)}" for each in ours).most_common()),
    }


def _commit(requests: Sequence[Request], epoch: int) -> int:
    return next(n for n, each in enumerate(requests) if each.is_copy and each.path.endswith(f"/commits/{epoch}"))


def _place(request: Request) -> str:
    """The object, or the prefix whose objects are listed."""
    return f"{request.path}/{unquote(request.query).partition('prefix=')[2]}/"


def _by_use(requests: Sequence[Request]) -> dict[str, int]:
    reads = sum(each.kind in ("GET", "HEAD", "LIST") for each in requests)
    return {"writes": len(requests) - reads, "reads": reads}


def _checkpoints(spark: SparkSession, server: S3Server, quick: bool) -> Part:
    root = f"s3a://{server.bucket}/checkpoints"
    count = 1 if quick else _CHECKPOINTS
    numbers: dict[str, Any] = {}
    added = _KEYS
    use_rocksdb(spark)
    with tempfile.TemporaryDirectory() as folder, cc.Job("keys", spark, root=root) as job:
        started = start_keys(spark, job, folder, _KEYS)
        files = HadoopFiles(spark)
        job.trigger_checkpoint().wait(_WAIT_SECONDS)  # what is read once by each driver does not count
        for kind, trigger, is_idle in (
            ("checkpoint", job.trigger_checkpoint, False),
            ("savepoint", job.trigger_savepoint, False),
            ("savepoint of an idle query", job.trigger_savepoint, True),
        ):
            rounds = []
            for _ in range(count):
                if not is_idle:
                    add_keys(spark, job, started, folder, range(added, added + _MORE_KEYS))
                    added += _MORE_KEYS
                rounds.append(_of_one(server, files, trigger))
            numbers[kind] = {"rounds": rounds, **_medians(rounds)}
    goals = [
        at_most(f"a {kind}, other requests", found["others"], 10, "+ one per state store")
        for kind, found in numbers.items()
    ]
    copies = max(each["copies"] - each["files"] for found in numbers.values() for each in found["rounds"])
    return Part([at_most("a savepoint of n files, copies", copies, 0, "+ n"), *goals], numbers)


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over the rounds; other requests without those that each state store or new file costs."""
    others = [each["others"] - each["indexes"] - each["checksums"] for each in rounds]
    return {
        "others": statistics.median(others),
        **{name: statistics.median(each[name] for each in rounds) for name in ("copies", "indexes", "checksums")},
    }


def _of_one(server: S3Server, files: Files, trigger: Callable[[], cc.CheckpointHandle]) -> dict[str, Any]:
    earlier = len(server.requests())
    began = time.monotonic()
    completed = trigger().wait(_WAIT_SECONDS)
    seconds = time.monotonic() - began
    requests = server.requests()[earlier:]
    metadata = read_metadata(files, completed.path)
    assert metadata is not None
    kinds = Counter(f"{each.kind} {_name(each)}" for each in requests)
    copies = sum(number for kind, number in kinds.items() if kind.startswith("COPY"))
    # The log is read half a second later, and the watch of the claim does not wait.
    watched = sum(bool(_CLAIM.search(each.path)) for each in requests)
    return {
        "seconds": round(seconds, 3),
        "files": sum(len(each.files) for each in metadata.queries.values()),
        "copies": copies,
        "others": len(requests) - copies - watched,
        "indexes": sum(number for kind, number in kinds.items() if _INDEX.match(kind)),
        "checksums": sum(number for kind, number in kinds.items() if _CHECKSUM.match(kind)),
        "claims": watched,
        "kinds": {kind: number for kind, number in kinds.most_common() if not kind.startswith("COPY")},
    }


def _name(request: Request) -> str:
    return re.sub(r"\d+", "N", _place(request).partition("/")[2].partition("/")[2])[:80]


def _listing(spark: SparkSession, server: S3Server, quick: bool) -> Part:
    root = f"s3a://{server.bucket}/many"
    count = 2_000 if quick else int(os.environ.get("COORD_BENCH_OBJECTS", _OBJECTS))
    without_jvm = ObjectFiles()
    without_jvm.create(join(root, "0"), b"x")
    without_jvm.link_all(root, root, [("0", f"{number % 100}/{number}") for number in range(1, count)])
    needed = -(-count // _OBJECTS_IN_AN_ANSWER)
    goals, numbers = [], {}
    for name, files in (("Hadoop", HadoopFiles(spark)), ("without a JVM", without_jvm)):
        earlier, began = len(server.requests()), time.monotonic()
        assert len(files.walk(root)) == count
        seconds = time.monotonic() - began
        requests = len(server.requests()) - earlier
        goals.append(at_most(f"listing {count:,} objects, {name}", requests, needed + 2, "requests"))
        numbers[name] = {"objects": count, "requests": requests, "seconds": round(seconds, 2)}
    return Part(goals, numbers)


def _epoch(started: StreamingQuery) -> int:
    progress = started.lastProgress
    return -1 if progress is None else progress.batchId


def _await_epoch(started: StreamingQuery, epoch: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while _epoch(started) < epoch:
        if (error := started.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"epoch {epoch} is not there after {_WAIT_SECONDS:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main("objects", objects))
