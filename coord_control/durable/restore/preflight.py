"""The check before a restore: what was found, whether the restore can work, and what to do if it cannot.

It has four parts. This one needs the storage only: the checkpoint's files, the job to restore, the installed Spark.
The second (:mod:`.preflight_sources`) looks for the files that the sources will read again, the third
(:mod:`.preflight_sinks`) at what the sinks hold. The fourth (:mod:`.preflight_declared`) compares the program's queries
and operators with those of the checkpoint. ``coordctl restore --check`` makes the first three; a driver makes all of
them, before it changes anything.

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
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.durable.restore.checks import ALLOW, Check, Verdict
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.errors import CoordControlError
from coord_control.ids import QueryName

__all__ = ["check_files", "check_job", "check_spark_version"]

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
