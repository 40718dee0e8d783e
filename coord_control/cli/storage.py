"""The storage that a command works on: local paths at once, everything else through a Spark that is started for it.

Threading: the command's thread.
"""

from __future__ import annotations

import difflib
import functools
import os

import typer

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.files.filesystem import Files, LocalFiles, join, scheme
from coord_control.errors import JobNotFound

__all__ = ["absolute", "catalog_of", "existing_job", "reference", "storage_of"]

_LOCAL = LocalFiles()


def absolute(path: str) -> str:
    """A path that means the same everywhere; URIs stay as they are."""
    return path.rstrip("/") if scheme(path) is not None else os.path.abspath(path)


def reference(ref: str) -> str:
    """A reference to a checkpoint: a path is made absolute, an id or a label stays as it is."""
    return absolute(ref) if "/" in ref or scheme(ref) is not None else ref


def existing_job(root: str, job: str) -> str:
    """The folder of a job that is there.

    Raises:
        JobNotFound: it is not; the message names those with a similar name.
    """
    files = storage_of(root)
    if not files.exists(join(root, job)):
        raise JobNotFound(job, root, difflib.get_close_matches(job, files.list(root), n=3))
    return join(root, job)


def catalog_of(ref: str, job: str | None, root: str | None) -> Catalog:
    """Where a reference is looked up: among the checkpoints of a job, or by its path alone.

    Raises:
        JobNotFound: there is no such job below the root.
        typer.BadParameter: nothing says of which job it is.
    """
    if job is not None and root is not None:
        base = absolute(root)
        return Catalog(storage_of(base), existing_job(base, job), storage_of)
    if "/" not in ref:
        raise typer.BadParameter(f"{ref!r} is an id or a label: say of which job, with --job or COORD_JOB")
    # Savepoints can be anywhere; the list of no job has it.
    folder = absolute(ref)
    return Catalog(storage_of(folder), join(folder, "no-job"), storage_of)


def storage_of(path: str) -> Files:
    """The storage that an absolute path or a URI is on.

    Raises:
        typer.BadParameter: it needs Spark, and Spark cannot be started.
    """
    return _LOCAL if scheme(path) in (None, "file") else _through_spark(path)


@functools.cache
def _through_spark(path: str) -> Files:
    try:
        from coord_control.spark.hadoop_files import files_for
        from coord_control.spark.session import storage_session

        return files_for(path, storage_session())
    except Exception as error:  # Spark, Java, or a missing file system class: many libraries have a say in it
        raise typer.BadParameter(
            f"{path} needs Spark to be read, which cannot be started here ({error}); see coordctl doctor, or copy it "
            "to a local path"
        ) from error
