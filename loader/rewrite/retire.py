"""Deletes the files that a rewrite replaced, once no query reads them.

A query that began before the rewrite reads the old files to its end, and a paused driver that resumes may even set the
partition's location back to the old directory for a moment. Replaced files are therefore deleted no sooner than a day
later and after the appliers have applied the commit. Before that, the partition's location is corrected if necessary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from headrace.hive_ddl.errors import HiveDdlError
from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.apply.partitions import PartitionsApplier
from headrace.loader.commit.commit import TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import generation_at, live_at
from headrace.loader.commit.state import LoaderState
from headrace.loader.storage.protocols import WarehouseFiles

logger = logging.getLogger(__name__)

READERS_MS = 86_400_000  # longest duration of a query that still reads the replaced files


class Retirement:
    def __init__(self, log: CommitLog, index: FileIndex, files: WarehouseFiles, partitions: PartitionsApplier) -> None:
        self._log = log
        self._index = index
        self._files = files
        self._partitions = partitions

    def retire(self, now_ms: int) -> frozenset[int]:
        """Deletes replaced files if their rewrite was committed a day (`READERS_MS`) before `now_ms` or earlier, and
        the appliers of files and partitions have applied it. Returns the commit numbers of the rewrites whose replaced
        files are now all deleted; a commit of this run lists them in `retired`, so that later runs do not examine them.

        Raises:
            CorruptCommit: a commit cannot be read.
            OSError: a file cannot be deleted.
        """
        state = self._log.read_state()
        due = sorted(
            commit_number
            for commit_number, committed_at_ms in state.rewrites.items()
            if now_ms - committed_at_ms >= READERS_MS
        )
        return frozenset(commit_number for commit_number in due if self._retire_commit(commit_number, state))

    def _retire_commit(self, commit_number: int, state: LoaderState) -> bool:
        topics = self._log.commit(commit_number).topics
        if not all(self._is_applied(topic, commit_number) for topic in topics):
            return False
        unfinished = {
            topic
            for topic, committed in topics.items()
            if not self._retire_topic(topic, committed, commit_number, state)
        }
        return not unfinished

    def _retire_topic(self, topic: str, committed: TopicCommit, commit_number: int, state: LoaderState) -> bool:
        # One listing per directory: on S3, a request for each file would take minutes.
        names = [
            f"{directory}/{name}"
            for directory, replaced in self._replaced(topic, committed, commit_number, state).items()
            for name in sorted(replaced & self._files.lengths(directory).keys())
        ]
        if not names:
            return True  # already deleted by an earlier run; no need to open the metastore again
        try:
            self._repair_partitions(topic, committed, state)
        except HiveDdlError as error:
            logger.warning(
                "replaced_files_not_deleted, the next load tries again commit=%d topic=%s reason=%s",
                commit_number,
                topic,
                error,
            )
            return False
        self._files.remove(names)
        logger.info("replaced_files_deleted commit=%d topic=%s files=%d", commit_number, topic, len(names))
        return True

    def _is_applied(self, topic: str, commit_number: int) -> bool:
        appliers = (FILES, self._partitions.name)
        return all(read_cursor(self._log.storage, name).position(topic) >= commit_number for name in appliers)

    def _repair_partitions(self, topic: str, committed: TopicCommit, state: LoaderState) -> None:
        for kind in sorted({rewrite.kind for rewrite in committed.rewrites}):
            time_partitions = {rewrite.time_partition for rewrite in committed.rewrites if rewrite.kind is kind}
            self._partitions.update(topic, state.topics[topic], kind, time_partitions, state.commit_number)

    def _replaced(
        self, topic: str, committed: TopicCommit, commit_number: int, state: LoaderState
    ) -> Mapping[str, Set[str]]:
        """Returns, by directory, the names of the files that a rewrite of a topic made unused: all files that the
        rewritten time partitions had before the rewrite, in the directories of their earlier generation.

        Args:
            committed: the topic's part of the rewrite.
            commit_number: the rewrite's commit.
            state: the newest state, which has the topic's directory.
        """
        replaced = {}
        for rewrite in committed.rewrites:
            indexed = self._index.time_partition(topic, rewrite.kind, rewrite.time_partition)
            generation = generation_at(indexed, commit_number - 1)
            directory = time_partition_directory(
                state.topics[topic].directory, rewrite.kind, rewrite.time_partition, generation
            )
            replaced[directory] = {file.name for file in live_at(indexed, commit_number - 1)}
        return replaced
