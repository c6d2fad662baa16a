"""The numbered files of the log: single commits, and archives of older ones.

    log/000000107.json          one commit, written by put-if-absent and never changed
    archive/000000100.jsonl     the `ARCHIVE_COMMITS` commits up to that number, one per line, byte for byte

A year has fifty thousand commits, so older ones are packed into archives. An archive is written by put-if-absent, and
only then are its single files deleted. A driver that was paused meanwhile may find the number of an archived commit
free and write its own commit there. Such a file must not count. A single file is therefore valid only if no archive of
its number exists after the file was read or written.
"""

from __future__ import annotations

import logging

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.document import read_document
from headrace.loader.errors import CorruptCommit, StorageError
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

ARCHIVE_COMMITS = 100
UNARCHIVED_COMMITS_MIN = 200  # number of newest commits that stay single files, because appliers read them often
ARCHIVE_BYTES_MAX = 64 * 1024 * 1024  # larger groups of commits are not archived, since few files hold much data
PUT_ATTEMPTS_MAX = 3  # per number, if the storage reports an existing file and then does not find it
LOG_DIRECTORY = "log"


def commit_path(commit_number: int) -> str:
    return f"{LOG_DIRECTORY}/{commit_number:09d}.json"


def archive_path(commit_number: int) -> str:
    """Returns the path of the archive that holds this commit. An archive is named by its last commit number."""
    return f"archive/{_archive_end(commit_number):09d}.jsonl"


def _archive_end(commit_number: int) -> int:
    return -(-commit_number // ARCHIVE_COMMITS) * ARCHIVE_COMMITS


class CommitFiles:
    def __init__(self, storage: CommitStorage) -> None:
        self._storage = storage
        self._newest_archive: tuple[int, list[bytes]] = (0, [])

    def path(self, commit_number: int) -> str:
        """Returns the path of the file that holds a commit, for messages."""
        archived = not self._storage.exists(commit_path(commit_number)) and self._storage.exists(
            archive_path(commit_number)
        )
        return self._storage.describe(archive_path(commit_number) if archived else commit_path(commit_number))

    def exists(self, commit_number: int) -> bool:
        return self._storage.exists(commit_path(commit_number)) or self._storage.exists(archive_path(commit_number))

    def read(self, commit_number: int) -> bytes | None:
        """Returns the content of a commit, from its single file or its archive; None if it does not exist.

        Raises:
            CorruptCommit: its archive is truncated.
        """
        is_known = self._newest_archive[0] == _archive_end(commit_number)
        content = None if is_known else self._storage.read(commit_path(commit_number))
        archived = self._archived(commit_number)
        return content if archived is None else archived

    def persist(self, commit_number: int) -> None:
        """Fsyncs a commit that was read, because the process that wrote it may have been killed before its fsync.

        Raises:
            OSError: the fsync failed.
        """
        for path in (commit_path(commit_number), archive_path(commit_number)):
            if self._storage.exists(path):
                self._storage.persist(path)

    def put(self, commit_number: int, content: bytes) -> bytes:
        """Writes `content` as the commit `commit_number`, if the number is free. Returns the content that has the
        number now: this one, or that of another process that was faster. Either is fsynced.

        Raises:
            StorageError: the storage reports that the file exists, but it cannot be read.
            CorruptCommit: the archive that has the number is truncated.
            OSError: the storage failed, and it is unknown whether the content was written.
        """
        path = commit_path(commit_number)
        failure: OSError | None = None
        for _ in range(PUT_ATTEMPTS_MAX):
            made = False
            try:
                made = self._storage.put_if_absent(path, content)
                failure = None
            except OSError as error:
                # The file may have been written although the call failed, so read it.
                failure = error
            found = content if made else self._storage.read(path)
            archived = self._archived(commit_number)
            if archived is not None:
                if made:
                    self._storage.remove(path)
                return archived
            if found is not None:
                if not made:
                    self._storage.persist(path)
                return found
        if failure is not None:
            raise failure
        raise StorageError(
            f"{self._storage.describe(path)} exists according to the storage, but cannot be read; load again"
        )

    def archive(self, head: int) -> int:
        """Archives the commits that are older than the newest `UNARCHIVED_COMMITS_MIN`, in whole groups of
        `ARCHIVE_COMMITS`, and deletes their single files. A group that is too large or has a damaged commit stays as it
        is.

        Any number of processes may archive concurrently, and may be killed at any point.

        Args:
            head: the newest commit number.

        Returns:
            The number of files deleted.
        """
        removed = 0
        unarchived = {int(name[:9]) for name in self._storage.children(LOG_DIRECTORY) if name[:9].isdecimal()}
        for end in sorted({_archive_end(commit_number) for commit_number in unarchived}):
            if end <= head - UNARCHIVED_COMMITS_MIN:
                removed += self._archive(end, unarchived)
        return removed

    def _archive(self, end: int, unarchived: set[int]) -> int:
        commits = range(end - ARCHIVE_COMMITS + 1, end + 1)
        if not self._storage.exists(archive_path(end)):
            contents = [self._storage.read(commit_path(commit_number)) or b"" for commit_number in commits]
            content = b"".join(contents)
            if len(content) > ARCHIVE_BYTES_MAX or not all(map(_is_valid, contents)):
                return 0  # one of the commits is damaged: as a single file it can be restored from a backup
            self._storage.put_if_absent(archive_path(end), content)
        # The writer of the archive may have been killed before it fsynced the directory.
        self._storage.persist(archive_path(end))
        removed = 0
        for commit_number in commits:
            if commit_number in unarchived and self._archived(commit_number) == self._storage.read(
                commit_path(commit_number)
            ):
                self._storage.remove(commit_path(commit_number))
                removed += 1
        return removed

    def _archived(self, commit_number: int) -> bytes | None:
        """Returns the content of a commit in its archive, None if there is no archive.

        Raises:
            CorruptCommit: the archive is truncated.
        """
        end = _archive_end(commit_number)
        if self._newest_archive[0] != end:
            content = self._storage.read(archive_path(commit_number))
            if content is None:
                return None
            lines = content.splitlines(keepends=True)
            if len(lines) != ARCHIVE_COMMITS:
                reason = f"it has {len(lines)} commits instead of {ARCHIVE_COMMITS}"
                raise CorruptCommit(self._storage.describe(archive_path(commit_number)), reason)
            self._newest_archive = (end, lines)
        return self._newest_archive[1][commit_number - end - 1]


def _is_valid(content: bytes) -> bool:
    """Whether the content of a commit is undamaged: one line and a valid document."""
    try:
        read_document(content, Commit)
    except ValueError:
        return False
    return content.count(b"\n") == 1 and content.endswith(b"\n")
