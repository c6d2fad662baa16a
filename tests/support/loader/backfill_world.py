"""A topic of three hours, loaded in several runs by real tasks, and backfills of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.findings import VerifyFinding
from headrace.loader.inspect.published_files import published_files
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.report import RunReport
from headrace.loader.rewrite.backfill import BackfillPorts, BackfillSettings, backfill
from headrace.loader.rewrite.backfill_report import BackfillPeriod, BackfillReport
from headrace.loader.run import run_load
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import FileKind
from support.loader.task_world import TaskWorld

TIMED = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"timestamp","type":"long"}]}'
WITH_NOTE = TIMED.replace("]}", ',{"name":"note","type":"string","default":""}]}')
BAD = 9  # an unregistered schema id
DAY = "dt=2026-01-01"
HOURS = [f"{DAY}/hr=0{hour}" for hour in range(3)]
ALL = BackfillPeriod("dt=1970-01-01", DAY)  # unreadable messages are stored by their record time


class BackfillWorld(TaskWorld):
    """A warehouse in which the topic `orders` is loaded and backfilled, with fake servers and real tasks. The hour of a
    message is its offset modulo three."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.policy = dataclasses.replace(self.policy, quarantine_ratio_max=1.0)
        self.lines: list[str] = []
        self.registry.register("orders-value", 1, TIMED)

    def load(self) -> RunReport:
        return run_load(self.ports(), self.settings)

    def backfill_ports(self) -> BackfillPorts:
        ports, rewrites = self._driver()
        rewrites = dataclasses.replace(rewrites, build=self.settings.plan.build)
        run_units: Any = self.pool
        return BackfillPorts(rewrites, ports.cluster, ports.schemas, run_units, self.lines.append)

    def backfill(
        self, period: BackfillPeriod = ALL, *, is_dry: bool = False, piece_bytes_max: int = 2**30, **changes: Any
    ) -> BackfillReport:
        """Runs a backfill of the topic and returns its report.

        Args:
            period: the time partitions to rewrite.
            piece_bytes_max: estimated bytes that one task reads.
            changes: fields of `BackfillPorts` to replace.
        """
        ports = dataclasses.replace(self.backfill_ports(), **changes)
        settings = BackfillSettings(self.settings.plan, self.settings.task, piece_bytes_max)
        return backfill(ports, "orders", period, settings, is_dry=is_dry)

    def files(self, kind: FileKind = FileKind.DATA, time_partition: str = "") -> list[Path]:
        """Returns the paths of the topic's current files, after they were published."""
        log = self.log()
        commit_number = log.read_state().commit_number
        published = published_files(
            FileIndex(log), log, "orders", kind, commit_number, lambda found: time_partition in ("", found)
        )
        return [self.warehouse / one.path for one in published]

    def findings(self) -> tuple[VerifyFinding, ...]:
        """Returns the findings of `headrace verify --checksums`."""
        log = self.log()
        log.read_state()
        return verify_topic(log, FileIndex(log), local_storage(self.warehouse), "orders", checksums=True).findings

    def run_ids(self) -> frozenset[str]:
        return local_storage(self.warehouse).staging.run_ids()

    def is_complete(self) -> bool:
        """Returns whether every message is a row or in quarantine exactly once, and `verify` has no finding."""
        messages = sorted([*self.rows("orders"), *self.quarantined("orders")])
        return messages == self.produced("orders") and not self.findings()
