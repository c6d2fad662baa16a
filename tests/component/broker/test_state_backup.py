"""Backups of a broker, a commit log, tables and databases that change at every step of the copy."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.audit.row import Tier
from headrace.audit.storage.store import AuditStore
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.rewrite.run import accept_missing
from headrace.loader.storage.local import local_storage
from headrace.loader.work_unit import FileKind
from headrace.pipeline.state_backup.backup import back_up
from headrace.pipeline.state_backup.manifest import Manifest, Store
from headrace.pipeline.state_backup.restore import RestoreReport, restore
from headrace.settings import Settings
from support.loader.loads_in_process import Loads
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

TOPIC = "orders"
BATCH = 5


class Machine:
    """A data directory with a broker process and a loader in this process. Message number `n` has offset `n`."""

    def __init__(self, data_dir: Path, start_service: StartService) -> None:
        self.data_dir, self._start_service = data_dir, start_service
        self.settings = Settings(data_dir=data_dir)
        self.broker = self.start()
        self.produced = 0

    def start(self) -> Service:
        self.loads = Loads(self.data_dir, TOPIC)
        return self._start_service(
            "headrace", "broker", "serve", "--data-dir", str(self.data_dir), "--broker-listen", "127.0.0.1:0"
        )

    @property
    def address(self) -> str:
        return self.broker.addresses["broker"]

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        with contextlib.closing(sqlite3.connect(self.data_dir / "registry.db")) as database:
            database.execute("CREATE TABLE schema_ids (id INTEGER)")

    def write(self, step: str = "") -> None:
        """Registers a schema id for the next messages, produces them, and loads all."""
        with contextlib.closing(sqlite3.connect(self.data_dir / "registry.db")) as database, database:
            database.execute("INSERT INTO schema_ids VALUES (?)", (self.produced + BATCH,))
        self.loads.produce(self.address, range(self.produced, self.produced + BATCH))
        self.produced += BATCH
        report = self.loads.load(self.address)
        assert (report.problems, report.notes) == ({}, ())

    def lose(self) -> None:
        self.broker.kill()
        shutil.rmtree(self.data_dir)

    def back_up(self, target: Path, step: Callable[[str], None], without: tuple[Store, ...] = ()) -> Manifest:
        return back_up(self.settings, target, without=without, progress=step)

    def restore(self, backup: Path, *, replaces: bool = False) -> RestoreReport:
        report = restore(self.settings, backup, replaces=replaces)
        self.broker = self.start()
        return report

    def rows(self) -> list[tuple[int, int]]:
        """Returns offset and number of all rows that queries read."""
        return sorted(row for rows in self.loads.rows().values() for row in rows)


@pytest.fixture
def machine(memory_path: Path, start_service: StartService) -> Machine:
    machine = Machine(memory_path / "data", start_service)
    machine.create()
    machine.write()
    machine.write()
    return machine


def test_backup_under_load_has_each_message_once_and_all_schema_ids(machine: Machine, memory_path: Path) -> None:
    steps: list[str] = []

    def write(step: str) -> None:
        steps.append(step)
        machine.write()

    acknowledged = machine.produced
    manifest = machine.back_up(memory_path / "backup", write)
    assert manifest.findings == ()
    assert len(steps) > 10
    machine.lose()
    assert machine.restore(memory_path / "backup").findings == []

    report = machine.loads.load(machine.address)
    assert report.problems == {}
    restored = machine.rows()
    assert restored == [(n, n) for n in range(len(restored))]
    assert acknowledged <= len(restored) < machine.produced
    with contextlib.closing(sqlite3.connect(machine.data_dir / "registry.db")) as database:
        assert database.execute("SELECT max(id) FROM schema_ids").fetchone()[0] >= len(restored)

    machine.produced = len(restored)
    machine.write()
    assert machine.rows() == [(n, n) for n in range(len(restored) + BATCH)]
    with AuditStore(machine.data_dir / "audit.db") as store:
        counted = sum(row.count for row in store.rows(TOPIC) if row.tier is Tier.LOADER)
    assert counted == len(restored) + BATCH


@pytest.mark.parametrize("is_broker_restored", [True, False])
def test_older_backup_over_newer_tables_loads_each_message_once(
    machine: Machine, memory_path: Path, is_broker_restored: bool
) -> None:
    without = (Store.TABLES,) if is_broker_restored else (Store.TABLES, Store.BROKER)
    before = machine.produced
    manifest = machine.back_up(memory_path / "backup", lambda step: None, without)
    assert manifest.left_out[Store.TABLES] == "--without"
    machine.write()
    after = machine.produced
    machine.broker.kill()

    report = machine.restore(memory_path / "backup", replaces=True)
    (finding,) = report.findings
    assert finding.startswith("1 files of commits after 2 ")
    rows = machine.data_dir / "warehouse" / TOPIC
    assert len([path for path in rows.rglob("*.avro") if "_foreign" in path.parts]) == 1
    shutil.rmtree(rows / "_foreign")

    # With the restored broker, the messages after the backup are lost; with the newer one, they are loaded again.
    assert machine.loads.load(machine.address).problems == {}
    expected = before if is_broker_restored else after
    assert machine.rows() == [(n, n) for n in range(expected)]
    machine.produced = expected
    machine.write()
    assert machine.rows() == [(n, n) for n in range(expected + BATCH)]


def test_restore_names_files_that_were_deleted_since_the_backup(machine: Machine, memory_path: Path) -> None:
    machine.back_up(memory_path / "backup", lambda step: None, (Store.TABLES,))
    machine.broker.stop()
    deleted = next((machine.data_dir / "warehouse" / TOPIC).rglob("*.avro"))
    deleted.unlink()
    (finding,) = restore(machine.settings, memory_path / "backup", replaces=True).findings
    assert finding.startswith("1 files of the commit log are missing")
    assert deleted.name in finding


@pytest.mark.parametrize("is_committed", [True, False])
def test_file_that_is_deleted_during_the_backup(machine: Machine, memory_path: Path, is_committed: bool) -> None:
    """A deletion that a commit states makes the backup start again with this commit. Another one is a finding."""
    rows = machine.data_dir / "warehouse" / TOPIC

    def delete(step: str) -> None:
        present = {path.name: path for path in rows.rglob("*.avro")}
        if step.startswith("reading tables/") and len(present) == 2:
            (other,) = present.keys() - {step.rpartition("/")[2]}
            present[other].unlink()
            if is_committed:
                accept_missing(machine.loads._world.rewrites(), TOPIC, [FileKind.DATA], "", is_dry=False)

    manifest = machine.back_up(memory_path / "backup", delete)
    assert manifest.commit_number == (3 if is_committed else 2)
    assert len(manifest.findings) == (0 if is_committed else 1)
    assert manifest.stores[Store.TABLES] == "1 files"
    assert len([file for file in manifest.files_of(Store.TABLES) if file.path.endswith(".avro")]) == 1


def test_committed_file_that_is_only_in_staging_is_backed_up(machine: Machine, memory_path: Path) -> None:
    """Moves a published file back to staging, where a kill between commit and publication leaves it."""
    expected = machine.rows()
    warehouse = machine.data_dir / "warehouse"
    log = CommitLog(local_storage(warehouse).commits)
    commit = log.commit(log.read_state().commit_number)
    (file,) = commit.topics[TOPIC].files
    (published,) = warehouse.rglob(file.name)
    staged = warehouse / "_headrace" / "staging" / commit.run_id / file.staged
    staged.parent.mkdir(parents=True)
    published.rename(staged)
    (warehouse / "_headrace" / "cursor" / "files.json").unlink()

    assert machine.back_up(memory_path / "backup", lambda step: None).findings == ()
    machine.lose()
    machine.restore(memory_path / "backup")
    assert machine.rows() == expected[:BATCH]
    machine.loads.load(machine.address)
    assert machine.rows() == expected
