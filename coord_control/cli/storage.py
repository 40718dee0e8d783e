"""The storage that a command works on: local paths and object stores directly, all others through Spark, on demand.

Threading: the command's thread.
"""

from __future__ import annotations

import difflib
import functools
import os

import typer

from coord_control.durable.files.by_scheme import OBJECT_STORES, without_spark
from coord_control.durable.files.filesystem import Files, join, scheme
from coord_control.errors import JobNotFound

__all__ = ["absolute", "existing_job", "reference", "storage_of"]


def absolute(path: str) -> str:
    """Return an absolute path; URIs are unchanged."""
    return path.rstrip("/") if scheme(path) is not None else os.path.abspath(path)


def reference(ref: str) -> str:
    """Return a reference to a checkpoint: a path is made absolute, an id or a label is unchanged."""
    return absolute(ref) if "/" in ref or scheme(ref) is not None else ref


def existing_job(root: str, job: str) -> str:
    """Return the folder of an existing job.

    Raises:
        JobNotFound: there is no such job; the message names similar ones.
    """
    files = storage_of(root)
    if not files.exists(join(root, job)):
        raise JobNotFound(job, root, difflib.get_close_matches(job, files.list(root), n=3))
    return join(root, job)


def storage_of(path: str) -> Files:
    """Return the storage of an absolute path or a URI.

    Raises:
        typer.BadParameter: it needs Spark, which cannot be started.
    """
    return without_spark(path) or _through_spark(path)


@functools.cache
def _through_spark(path: str) -> Files:
    try:
        from coord_control.spark.hadoop_files import files_for
        from coord_control.spark.session import storage_session

        return files_for(path, storage_session())
    except Exception as error:  # Spark, Java, or a missing file system class: many kinds of errors
        raise typer.BadParameter(
            f"reading {path} needs Spark, which cannot be started here ({error}); see coordctl doctor, or "
            f"{_way_out(path)}"
        ) from error


def _way_out(path: str) -> str:
    if scheme(path) in OBJECT_STORES:
        return "read it without Spark: pip install 'coord-control[objects]'"
    return "copy it to a local path"
