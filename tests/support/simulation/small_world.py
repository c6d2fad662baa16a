"""A small warehouse with real tasks and fake servers, for simulations, and the check of its final state."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from headrace.audit.row import AuditOutcome
from headrace.audit.storage import engine
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit import commit_files, commit_log, prepare
from headrace.loader.plan import registry_requests
from headrace.loader.storage.local import sink
from support.loader.task_world import TaskWorld
from support.simulation.power_loss import OneByOne
from support.simulation.remembered import keep_journal_in_memory, remember_results

AT_ONCE_MS = -(10**15)  # age of staging that the next cleaning voids
LONG_NAME = "x" * 700  # of a field, so that the schemas of the tables are separate files
ORDER_V1 = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    f'{{"name":"{LONG_NAME}","type":"string","default":""}}]}}'
)
ORDER_V2 = ORDER_V1.replace("]}", ',{"name":"note","type":"string","default":""}]}')
LITERAL_CHARS_MAX = 700
BAD = 9  # an unregistered schema id


class Lost(AssertionError):
    """Data is missing on a disk, or there is unexpected data."""


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Changes constants of the loader, so that few commits suffice for checkpoints and archives, and a run with two
    topics makes two commits."""
    patch.setattr(commit_files, "ARCHIVE_COMMITS", 2)
    patch.setattr(commit_files, "UNARCHIVED_COMMITS_MIN", 2)
    patch.setattr(commit_log, "CHECKPOINT_INTERVAL_COMMITS", 2)
    patch.setattr(prepare, "COMMIT_BYTES_MAX", 1)
    for module in (sink, registry_requests):
        patch.setattr(module, "ThreadPoolExecutor", OneByOne)
    remember_results(patch)
    keep_journal_in_memory(patch)
    patch.setattr(engine, "SYNCHRONOUS", "OFF")


class SmallWorld(TaskWorld):
    """A small warehouse. The definitions of its tables refer to schema files by URL, so that these files are tested
    too. Its audit database is in another directory than the warehouse."""

    def __init__(self, root: Path, audit_path: Path) -> None:
        super().__init__(root)
        self.audit_path = audit_path
        self.settings = dataclasses.replace(self.settings, staging_age_ms=AT_ONCE_MS)
        self.policy = dataclasses.replace(self.policy, quarantine_ratio_max=1.0)

    def tables(self) -> TableSettings:
        return dataclasses.replace(super().tables(), literal_chars_max=LITERAL_CHARS_MAX)


def check_whole(world: SmallWorld, *, staging: bool = True) -> None:
    """Checks that every offset is in one row or in quarantine, and is counted once by each tier.

    Args:
        staging: whether to check also that staging is empty.

    Raises:
        Lost: the check failed.
    """
    for topic in world.cluster.topics:
        rows, quarantined, produced = world.rows(topic), world.quarantined(topic), world.produced(topic)
        if sorted([*rows, *quarantined]) != produced:
            raise Lost(f"of {topic} there is {rows} and {quarantined} and should be {produced}")
        counted = Counter[AuditOutcome]()
        for row in world.audit(topic):
            counted[row.outcome] += row.count
        if (counted[AuditOutcome.WRITTEN], counted[AuditOutcome.STORED]) != (len(rows), len(produced)):
            raise Lost(f"the audit has {counted} of {topic}, {len(rows)} of {len(produced)} rows")
    left = sorted(world.log().storage.children("staging"))
    if staging and left:
        raise Lost(f"staging is left: {left}")
