"""The warehouse of the simulated year: real tasks, files, commits and audit; brokers, registry and metastore in
memory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.schema import TableSettings
from headrace.loader.commit import commit_log
from headrace.loader.plan import registry_requests
from headrace.loader.project.quarantine import SCHEMA
from headrace.loader.rewrite.run import RewritePorts
from headrace.loader.run import RunDependencies
from headrace.loader.storage.local import sink
from support.loader.loader_fakes import FakeRegistry
from support.loader.task_world import ServingCluster, TaskWorld
from support.simulation import faults
from support.simulation.power_loss import OneByOne
from support.simulation.remembered import keep_journal_in_memory, remember_results
from support.simulation.year.broker import YearCluster
from support.simulation.year.registry import YearRegistry

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
FILE_BYTES_TARGET = 64 * 1024  # so that large partitions are split
CHECKPOINT_INTERVAL_COMMITS = 10  # commits: each day's load is a new process, which would read up to a hundred
LITERAL_CHARS_MAX = 1_500  # so that the schemas of some tables are separate files


class YearWorld(TaskWorld):
    """A warehouse with the simulated servers of `broker` and `registry`.

    Args:
        hive: the metastore; None for one in memory.
    """

    def __init__(self, root: Path, seed: int, hive: Executor | None = None) -> None:
        super().__init__(root)
        self._seed = seed
        self.cluster: Any = YearCluster()
        self.registry: Any = YearRegistry()
        if hive is not None:
            self.hive = hive  # type: ignore[assignment]
            self.knows_names = False  # the metastore of a session serves no other process
        self.settings = dataclasses.replace(
            self.settings,
            plan=dataclasses.replace(
                self.settings.plan, tasks=3, file_bytes_target=FILE_BYTES_TARGET, range_bytes_max=8 * 1024 * 1024
            ),
            task=dataclasses.replace(self.settings.task, file_bytes_target=FILE_BYTES_TARGET),
        )

    def tables(self) -> TableSettings:
        return dataclasses.replace(super().tables(), literal_chars_max=LITERAL_CHARS_MAX, quarantine_schema=SCHEMA)

    def _new_run_id(self) -> str:
        self._works += 1
        return hashlib.sha256(f"{self._seed}/{self._works}".encode()).hexdigest()[:32]

    @property
    def headrace(self) -> Path:
        """The directory `_headrace` of the warehouse, which has the commit log."""
        return self.warehouse / "_headrace"

    def drivers(self) -> tuple[RunDependencies, RewritePorts]:
        ports, rewrites = self._driver()
        return ports, dataclasses.replace(rewrites, build=self.settings.plan.build)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """In the context, loads run without fsyncs, which the power-loss tests cover, and without threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        patch.setattr(os, "fdatasync", lambda number: None)
        for module in (sink, registry_requests):
            patch.setattr(module, "ThreadPoolExecutor", OneByOne)
        remember_results(patch)
        keep_journal_in_memory(patch)
        patch.setattr(commit_log, "CHECKPOINT_INTERVAL_COMMITS", CHECKPOINT_INTERVAL_COMMITS)
        calls = dict(faults.CALLS)
        calls[YearCluster] = calls.pop(ServingCluster)
        calls[YearRegistry] = calls.pop(FakeRegistry)
        patch.setattr(faults, "CALLS", calls)
        yield
