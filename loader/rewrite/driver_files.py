"""Writes files in the driver for a rewrite: they are staged for its run, and deleted on failure."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from headrace.loader.commit.commit import CommittedFile
from headrace.loader.project.quarantine import SCHEMA
from headrace.loader.rewrite.run import RewritePorts, committed_file
from headrace.loader.storage.protocols import FinishedFile
from headrace.loader.work_unit import FileKind
from headrace.loader.write.container import SYNC_BYTES, ContainerFormat
from headrace.loader.write.range_rows import RangeRows
from headrace.loader.write.task_files import TaskFiles

NewRows = Callable[[int], RangeRows]
"""Creates the buffer for the rows of a partition, given its number. Rows must be added to it in offset order."""


@dataclass(frozen=True, slots=True)
class FileShape:
    """The properties of a topic's new files: the schema of their rows ("" if only quarantined messages are written),
    the codec, and sizes in bytes."""

    row_schema: str
    codec: str
    block_bytes: int
    file_bytes_target: int


def staged_files_of(
    ports: RewritePorts, topic: str, run_id: str, shape: FileShape, write: Callable[[TaskFiles, NewRows], None]
) -> list[CommittedFile]:
    """Creates files of a topic in the staging directory of a run. Returns the files as they are listed in a commit.

    Args:
        shape: the row schema, codec and sizes of the files.
        write: called once with the files and a function that creates row buffers; adds the rows to the files.

    Raises:
        OSError: the files cannot be written. After any exception, also of `write`, the files are deleted.
    """
    sync = secrets.token_bytes(SYNC_BYTES)
    formats = {FileKind.QUARANTINE: ContainerFormat(SCHEMA, shape.codec, sync)}
    if shape.row_schema:
        formats[FileKind.DATA] = ContainerFormat(shape.row_schema, shape.codec, sync)
    sink = ports.staging.sink(run_id)
    files = TaskFiles(
        sink,
        lambda kind, _: formats[kind],
        {"headrace.run_id": run_id, "headrace.task": "0"},
        block_bytes=shape.block_bytes,
        file_bytes_target=shape.file_bytes_target,
    )

    def new_rows(partition: int) -> RangeRows:
        return RangeRows(
            topic, partition, lambda kind, _: formats[kind], block_bytes=shape.block_bytes, scratch=sink.scratch
        )

    try:
        write(files, new_rows)
        staged = files.finish()
        ports.staging.persist(run_id, [FinishedFile(file.path, file.length) for file in staged])
    except BaseException:
        ports.staging.drop(run_id)  # no commit will contain its files
        raise
    finally:
        files.abandon()
    return [committed_file(0, number, file) for number, file in enumerate(staged)]
