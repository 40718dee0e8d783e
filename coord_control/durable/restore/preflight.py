"""The check before a restore: what was found, whether the restore can work, and what to do if it cannot.

It has three parts. This one needs the storage only: the checkpoint's files, the job to restore, the installed Spark.
The second (:mod:`.preflight_sources`) looks for the files that the sources will read again. The third
(:mod:`.preflight_declared`) compares the program's queries and operators with those of the checkpoint. ``coordctl
restore --check`` makes the first two; a driver makes all of them, before it changes anything.

A restore sets back Spark and the operators, but not the sinks: they keep their output. What the sinks then write
depends on how they skip epochs that they have received, so this is always reported (:func:`check_sinks`).

Threads: reads; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from coord_control.durable.checkpoints.checkpoint_folder import stored_name
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.durable.job_folder.lineage_record import Reached, query_folder
from coord_control.durable.restore.checks import ALLOW, Check, Verdict
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.durable.restore.reached import reached_here, reached_with
from coord_control.errors import CoordControlError
from coord_control.ids import Epoch, QueryName

__all__ = ["check_files", "check_job", "check_sinks", "check_spark_version"]

_OTHER: Final = "restore another checkpoint, or put the file back from a copy of the storage"
#: So many damaged files are named one by one.
_NAMED: Final = 5


def check_files(source: CheckpointSource, *, verify: bool = False) -> list[Check]:
    """Compare all files with the manifest: that they are there, their sizes, and with ``verify`` their content."""
    metadata = source.metadata
    if verify:
        fatal = [each for each in verify_files(source.files, source.path, metadata) if each.is_fatal]
        wrong = {query: [str(each) for each in fatal if each.query == query] for query in metadata.queries}
    else:
        wrong = {query: _wrong_sizes(source, query) for query in metadata.queries}
    looked = "sizes and checksums" if verify else "sizes"
    return [_files_check(query, snapshot, wrong[query], looked) for query, snapshot in metadata.queries.items()]


def check_spark_version(metadata: CheckpointMetadata, installed: str | None) -> list[Check]:
    """Compare the Spark that took the checkpoint with the one that would resume from it.

    Args:
        installed: the version in this environment; None if it has no Spark.
    """
    return [_check_version(query, snapshot, installed) for query, snapshot in metadata.queries.items()]


def check_job(
    files: Files, job_folder: str, source: CheckpointSource, *, is_fork: bool, allow_non_restored_state: bool
) -> list[Check]:
    """Check the job that is to resume from the checkpoint, and its neighbours.

    Args:
        files: the job's storage.
        is_fork: the job is a new one, in parallel with the original.
    """
    existing = queries_of(files, job_folder)
    checks = []
    if is_fork and existing:
        found = f"the job has run already, with the queries {existing}"
        checks.append(Check("job", "", Verdict.REFUSED, found, "choose another name for the fork"))
    for query in sorted(set(existing) - set(source.metadata.queries)):
        found = "it is not in the checkpoint, and would begin empty"
        verdict = Verdict.WARNING if allow_non_restored_state else Verdict.REFUSED
        checks.append(Check("query", query, verdict, found, "" if allow_non_restored_state else ALLOW))
    if not is_fork:
        checks += _check_ids(files, job_folder, source.metadata)
    return checks


def check_sinks(files: Files, job_folder: str, source: CheckpointSource, *, is_fork: bool) -> list[Check]:
    """Report what the sinks will do with epochs that they have received, in any lineage."""
    checks = []
    for query, snapshot in source.metadata.queries.items():
        if is_fork:
            checks.append(Check("sink", query, Verdict.WARNING, *_fork_note(snapshot)))
            continue
        here = reached_here(files, job_folder, query)
        reached = reached_with(snapshot, here)
        if reached.planned > snapshot.planned:
            checks.append(Check("sink", query, Verdict.WARNING, *_back_note(snapshot.planned, reached)))
        elif here is None:
            checks.append(Check("sink", query, Verdict.WARNING, *_unknown_note(snapshot)))
        else:
            checks.append(Check("sink", query, Verdict.OK, _same_note(snapshot)))
    return checks


def _wrong_sizes(source: CheckpointSource, query: QueryName) -> list[str]:
    snapshot, folder = source.metadata.queries[query], source.folder_of(query)
    sizes = {info.path: info.size for info in source.files.walk(folder)}
    names = [(stored_name(entry), entry.size) for entry in snapshot.files]
    return [join(folder, name) for name, size in names if sizes.get(name) != size]


def _files_check(query: QueryName, snapshot: QuerySnapshot, wrong: list[str], looked: str) -> Check:
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        found = f"missing or damaged: {', '.join(wrong[:_NAMED])}{more}"
        return Check("files", query, Verdict.REFUSED, found, _OTHER, is_damage=True)
    found = f"{len(snapshot.files)} files, {snapshot.size} bytes; {looked} fit the manifest"
    return Check("files", query, Verdict.OK, found)


def _check_version(query: QueryName, snapshot: QuerySnapshot, installed: str | None) -> Check:
    taken = snapshot.spark_version
    if installed is None:
        return Check("Spark", query, Verdict.WARNING, f"taken with {taken}; none is installed here", "")
    found = f"taken with {taken}, resumes with {installed}"
    before, now = _numbers(taken), _numbers(installed)
    if before == now or not before:
        return Check("Spark", query, Verdict.OK, found)
    if now < before:
        way_out = f"resume with Spark {taken} or newer: an older one may not understand what a newer one has written"
        return Check("Spark", query, Verdict.REFUSED, found, way_out)
    way_out = "read Spark's migration guide; try it on a fork (--as NAME) first"
    return Check("Spark", query, Verdict.WARNING, found, way_out)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the feature release, without the maintenance release."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else ()


def _check_ids(files: Files, job_folder: str, metadata: CheckpointMetadata) -> Iterable[Check]:
    root, _, own = job_folder.rstrip("/").rpartition("/")
    taken = {}
    for job in files.list(root):
        if job == own or not files.exists(join(root, job, "queries")):
            continue
        for query in files.list(join(root, job, "queries")):
            try:
                lineage = current_lineage(files, query_folder(join(root, job), query), QueryName(query))
            except CoordControlError:
                continue  # that job's trouble
            if lineage is not None:
                taken[lineage.query_id] = f"query {query!r} of job {job!r}"
    for query, snapshot in metadata.queries.items():
        if snapshot.query_id in taken:
            found = f"{taken[snapshot.query_id]} has the same query id; Spark refuses to run both"
            yield Check("query id", query, Verdict.WARNING, found, "stop that one, or restore as a fork (--as NAME)")
        else:
            yield Check("query id", query, Verdict.OK, f"{snapshot.query_id} is kept")


def _same_note(snapshot: QuerySnapshot) -> str:
    if snapshot.planned == snapshot.epoch:
        return f"nothing after epoch {snapshot.epoch} has been planned"
    return f"epoch {snapshot.planned} is run again with the same rows and events; nothing after it has been planned"


def _unknown_note(snapshot: QuerySnapshot) -> tuple[str, str]:
    found = (
        f"not known here: the query has no lineage in this job's folder. {_same_note(snapshot)} when the checkpoint "
        "was taken; the sinks may have received later epochs from elsewhere"
    )
    way_out = (
        "fine if the query has not run since; otherwise repeat the check where it has run (--root), or compare the "
        f"newest batch id in the sink with {snapshot.planned}"
    )
    return found, way_out


def _back_note(planned: Epoch, reached: Reached) -> tuple[str, str]:
    seen = []
    if reached.committed > planned:
        seen.append(f"{_epochs(planned + 1, reached.committed)} committed after the checkpoint")
    if reached.planned > max(planned, reached.committed):
        seen.append(
            f"epoch {reached.planned} was planned after it and not committed: a sink may have received it, in whole "
            "or in part"
        )
    found = (
        f"{'; '.join(seen)}. These epochs will run again with the same numbers and query id. A foreachBatch function "
        "or Delta sink that remembers (query id, batch id) SKIPS them; so does Spark's file sink, which remembers "
        "batch ids in _spark_metadata. What they now produce differently is then lost; data is written again from "
        f"epoch {reached.planned + 1} on. Any other sink or foreachBatch function gets these epochs twice"
    )
    way_out = (
        "fine if these epochs produce the same rows again; if not, set the sink back as well, or restore as a fork "
        "(--as NAME) with a separate output"
    )
    return found, way_out


def _epochs(first: int, last: int) -> str:
    return f"epoch {first} was" if first == last else f"epochs {first} to {last} were"


def _fork_note(snapshot: QuerySnapshot) -> tuple[str, str]:
    found = (
        f"the query gets a new id and resumes after epoch {snapshot.epoch}. A foreachBatch function or Delta sink that "
        "remembers (query id, batch id) takes every epoch; Spark's file sink remembers batch ids only "
        "(_spark_metadata) and skips those that the original has written"
    )
    way_out = (
        "write the fork's output to a separate place; the original may keep running. That is all for foreachBatch and "
        "Delta. Only Spark's file sink cannot start in an empty folder at a later epoch: copy the entries of the "
        f"original's _spark_metadata up to {snapshot.epoch} there first"
    )
    return found, way_out
