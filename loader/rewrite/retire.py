"""Removes the files of earlier generations, once nobody needs them any more.

A query that began before a bucket was switched reads the old files to its end, and a process that woke up late may even
switch a partition back for a moment. So they stay for a day, and until the followers have passed; then the partition is
looked at once more, and what the new generation does not use goes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.hive_ddl.errors import HiveDdlError
from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import bucket_folder
from headrace.loader.apply.partitions import PartitionsFollower
from headrace.loader.commit.bucket_index import generation_at, live_at
from headrace.loader.commit.decision import TopicDecision
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import LoaderState
from headrace.loader.storage.protocols import WarehouseFiles

logger = logging.getLogger(__name__)

READERS_MS = 86_400_000  # the longest query that began before the switch is given a day


class Retirement:
    def __init__(
        self, log: DecisionLog, index: FileIndex, files: WarehouseFiles, partitions: PartitionsFollower
    ) -> None:
        self._log = log
        self._index = index
        self._files = files
        self._partitions = partitions

    def retire(self, now_ms: int) -> frozenset[int]:
        """Removes what is due, and returns the slots whose replaced files are all gone, for a decision to say so.

        Raises:
            BadDecision, OSError.
        """
        state = self._log.read_state()
        due = sorted(slot for slot, decided_at_ms in state.rewrites.items() if now_ms - decided_at_ms >= READERS_MS)
        return frozenset(slot for slot in due if self._retire_slot(slot, state))

    def _retire_slot(self, slot: int, state: LoaderState) -> bool:
        topics = self._log.decision(slot).topics
        if not all(self._is_passed(topic, slot) for topic in topics):
            return False
        left = {topic for topic, decided in topics.items() if not self._retire_topic(topic, decided, slot, state)}
        return not left

    def _retire_topic(self, topic: str, decided: TopicDecision, slot: int, state: LoaderState) -> bool:
        names = [name for name in self._replaced(topic, decided, slot, state) if self._files.length(name) is not None]
        if not names:
            return True  # done before, and no decision since could say so: not worth opening the metastore again
        try:
            self._mend_partitions(topic, decided, state)
        except HiveDdlError as error:
            logger.warning("retirement_postponed slot=%d topic=%s reason=%s", slot, topic, error)
            return False
        self._files.remove(names)
        logger.info("retired slot=%d topic=%s files=%d", slot, topic, len(names))
        return True

    def _is_passed(self, topic: str, slot: int) -> bool:
        followers = (FILES, self._partitions.name)
        return all(read_cursor(self._log.storage, name).position(topic) >= slot for name in followers)

    def _mend_partitions(self, topic: str, decided: TopicDecision, state: LoaderState) -> None:
        for kind in sorted({rewrite.kind for rewrite in decided.rewrites}):
            buckets = {rewrite.bucket for rewrite in decided.rewrites if rewrite.kind is kind}
            self._partitions.bring(topic, state.topics[topic], kind, buckets, state.slot)

    def _replaced(self, topic: str, decided: TopicDecision, slot: int, state: LoaderState) -> Sequence[str]:
        """The names in the folders that the buckets had before the slot, of all that lived there then."""
        names = []
        for rewrite in decided.rewrites:
            indexed = self._index.bucket(topic, rewrite.kind, rewrite.bucket)
            generation = generation_at(indexed, slot - 1)
            folder = bucket_folder(state.topics[topic].folder, rewrite.kind, rewrite.bucket, generation)
            names += [f"{folder}/{file.name}" for file in live_at(indexed, slot - 1)]
        return names
