"""Compares the files of a time partition with the commits: by one listing of its directory, and by content."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.loader.apply.layout import HIDDEN_PREFIXES, time_partition_directory
from headrace.loader.checksum import checksum_as
from headrace.loader.commit.partition_index import IndexedTimePartition, generation_at
from headrace.loader.errors import StorageUnavailable
from headrace.loader.inspect.containers import count_rows
from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A published file as the commit `commit_number` describes it. `length` is in bytes."""

    name: str
    length: int
    checksum: str
    records: int
    commit_number: int


@dataclass(frozen=True, slots=True)
class ExpectedTimePartition:
    """The files that must be in the directory of a time partition (a path below the warehouse), and the names of
    committed files that may not be published yet (`waiting`)."""

    topic: str
    kind: FileKind
    time_partition: str
    directory: str
    files: tuple[ExpectedFile, ...]
    waiting: frozenset[str] = frozenset()

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def finding(self, check: ConsistencyCheck, where: str, message: str) -> VerifyFinding:
        return VerifyFinding(self.topic, check, where, message, self.kind, self.time_partition)


def expected_of_index(
    topic: str, directory: str, kind: FileKind, time_partition: str, indexed: IndexedTimePartition, applied: int
) -> ExpectedTimePartition:
    """Returns the files that a time partition must have in the warehouse, from the index of files.

    Args:
        directory: the topic's directory.
        applied: the newest commit up to which all files of the topic are published.
    """
    files, waiting = [], []
    for file in indexed.files:
        if file.since > applied:
            waiting.append(file.name)
        elif not file.until or file.until > applied:
            files.append(ExpectedFile(file.name, file.length, file.checksum, file.records, file.since))
    generation = generation_at(indexed, applied)
    return ExpectedTimePartition(
        topic,
        kind,
        time_partition,
        time_partition_directory(directory, kind, time_partition, generation),
        tuple(files),
        frozenset(waiting),
    )


def compare_listing(expected: ExpectedTimePartition, found: Mapping[str, int | None]) -> Iterator[VerifyFinding]:
    """Yields a finding for each file that is missing or has another length than committed, and for each file that no
    commit contains although queries read it. If no file is expected, no query reads the directory, and nothing in it is
    a finding.

    Args:
        found: the names in the directory with their lengths, as `WarehouseFiles.lengths` returns them.
    """
    for file in expected.files:
        path, origin = expected.path(file.name), f"added by commit {file.commit_number}"
        if file.name not in found:
            yield expected.finding(ConsistencyCheck.PLACE, path, f"is missing; it was {origin}")
        elif (length := found[file.name]) is None:
            yield expected.finding(ConsistencyCheck.LENGTH, path, f"is a directory and not a file, as {origin}")
        elif length != file.length:
            message = f"has {length:,} bytes instead of {file.length:,}, as {origin}"
            yield expected.finding(ConsistencyCheck.LENGTH, path, message)
    if expected.files:
        names = {file.name for file in expected.files} | expected.waiting
        yield from (
            _foreign(expected, name) for name in sorted(found.keys() - names) if not name.startswith(HIDDEN_PREFIXES)
        )


def _foreign(expected: ExpectedTimePartition, name: str) -> VerifyFinding:
    message = "no commit contains this file, and queries read it: move it away"
    return expected.finding(ConsistencyCheck.FOREIGN, expected.path(name), message)


def compare_content(
    expected: ExpectedTimePartition,
    file: ExpectedFile,
    files: WarehouseFiles,
    checks: Collection[ConsistencyCheck],
) -> VerifyFinding | None:
    """Reads a file of the committed length. Returns a finding if it cannot be read or has other content than committed,
    else None.

    Args:
        checks: `CHECKSUM` to read and compare every byte, `ROWS` to count the rows, which skips their bytes.

    Raises:
        FileNotFoundError: the file does not exist.
        StorageUnavailable: the storage as a whole is unavailable.
    """
    path, origin = expected.path(file.name), f"added by commit {file.commit_number}"
    try:
        if ConsistencyCheck.CHECKSUM in checks and (found := _checksum(files, path, file.checksum)) != file.checksum:
            message = f"has the checksum {found} instead of {file.checksum}, as {origin}"
            return expected.finding(ConsistencyCheck.CHECKSUM, path, message)
        if ConsistencyCheck.ROWS in checks and (rows := _rows(files, path, file.length)) != file.records:
            message = f"has {rows:,} rows instead of {file.records:,}, as {origin}"
            return expected.finding(ConsistencyCheck.ROWS, path, message)
    except (FileNotFoundError, StorageUnavailable):
        raise
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}; it was {origin}"
        return expected.finding(ConsistencyCheck.ROWS, path, message)
    except ValueError as error:
        return expected.finding(ConsistencyCheck.ROWS, path, f"cannot be read: {error}; it was {origin}")
    return None


def _checksum(files: WarehouseFiles, path: str, committed: str) -> str:
    with files.open(path) as file:
        return checksum_as(committed, file)


def _rows(files: WarehouseFiles, path: str, length: int) -> int:
    with files.open(path) as file:
        return count_rows(file, length)


def damaged_paths(findings: Iterable[VerifyFinding]) -> frozenset[str]:
    """Returns the paths of the files that a comparison by listing found missing or of another length."""
    return frozenset(one.where for one in findings if one.check in (ConsistencyCheck.PLACE, ConsistencyCheck.LENGTH))
