"""A warehouse of two thousand topics with five partitions each, for tests of reports. It is built from a few commits,
without loading messages: most topics have only tombstones, so that they need no files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import CountedCommit
from headrace.loader.apply.audit import audit_rows
from headrace.loader.apply.engine import Cursor, cursor_path
from headrace.loader.commit.commit import TopicCommit
from headrace.loader.commit.document import write_document
from headrace.loader.inspect.status import APPLIERS, AUDIT
from headrace.loader.work_unit import RangeCounts
from support.loader.loader_fakes import FakeCluster, FakeTopic
from support.loader.loader_samples import TIME_PARTITION, committed_range, load, topic_commit
from support.loader.shelf import Shelf, folded

TOPICS = 2_001
PARTITIONS = 5
OFFSETS = 3  # of each partition
LONG_TOPIC = ("shop.eu-1_" + "page-views.by_country." * 11)[:249]  # the longest name that Kafka permits
PENDING_TOPIC = "shop.eu-0007.page_views"
"""Its table change is pending."""
QUARANTINED_TOPIC = "shop.eu-0008.page_views"
LOST_TOPIC = "shop.eu-0009.page_views"
"""One of its files is missing."""


class Cluster(FakeCluster):
    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


class ManyTopics:
    """The warehouse, and a cluster with its topics. The data directory is `root`.

    Attributes:
        names: all topics.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = [LONG_TOPIC, *(f"shop.eu-{number:04}.page_views" for number in range(1, TOPICS))]
        logs: Any = [range(OFFSETS)] * PARTITIONS
        self.cluster = Cluster({name: FakeTopic("id-1", logs) for name in self.names})
        self.shelf = Shelf(root)
        self._commit()
        self._write_cursors()
        (path,) = self.shelf.warehouse.glob(f"{LOST_TOPIC}/*/*/*.avro")
        path.unlink()

    def _commit(self) -> None:
        rows = [(partition, offset) for partition in range(PARTITIONS) for offset in range(OFFSETS)]
        ranges = [(partition, None, 0, OFFSETS) for partition in range(PARTITIONS)]
        self.shelf.load({TIME_PARTITION: rows}, *ranges, topic=LOST_TOPIC)
        self.shelf.load(
            {TIME_PARTITION: rows[1:]}, *ranges, topic=QUARANTINED_TOPIC, quarantined={TIME_PARTITION: rows[:1]}
        )
        others = {name: _tombstones(name) for name in self.names if name not in (LOST_TOPIC, QUARANTINED_TOPIC)}
        result = self.shelf.log.try_commit(load("work-3", others))
        assert result.commit is not None, result.conflict
        self.shelf.apply_pending()

    def _write_cursors(self) -> None:
        """Records that all commits are applied, but for the table of `PENDING_TOPIC`."""
        log = self.shelf.log
        state = log.read_state()
        for name in APPLIERS:
            lagging = {PENDING_TOPIC: 0} if name in ("schema", "partitions") else {}
            if name != AUDIT:
                cursor = Cursor(state.commit_number, lagging, state.sha256)
                log.storage.replace(cursor_path(name), write_document(cursor))
        with AuditStore(self.root / "audit.db") as store:
            for number in range(1, state.commit_number + 1):
                commit, counted = log.commit(number), CountedCommit(number, log.sha256(number))
                for topic in commit.topics:
                    store.add_committed(topic, 0, counted, audit_rows(topic, commit, "host"))


def _tombstones(topic: str) -> TopicCommit:
    counts = RangeCounts(tombstones=OFFSETS)
    ranges = [
        dataclasses.replace(committed_range(partition, None, 0, OFFSETS), counts=counts)
        for partition in range(PARTITIONS)
    ]
    return dataclasses.replace(topic_commit(*ranges, new=True, table=topic[:120]), load_schema=folded())
