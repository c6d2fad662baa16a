"""Backs up the state of this machine while everything runs.

Each store is copied as of one instant, by its own online method, but not all stores at the same instant. The order
makes their copies fit together: a store is copied before the stores that it refers to, because all of them only grow.

1. The **cursors of the appliers**, then the **metastore** and **audit.db**, then the **commit log**. A cursor that is
   behind is normal after a crash: the applier applies the commits in between again, which changes nothing. A table or
   an audit count of a commit that the log lacks would be wrong.
2. The **commit log** before the **broker**: the log states which offsets were loaded. If the broker's copy ended before
   them, new messages would get these offsets, and the load would have to stop. In this order, the load after a restore
   reads the messages after the last commit from the broker's copy, exactly once.
3. The **broker** before the **registry**: messages refer to schema ids. Ids in the commit log are in messages.

The committed offsets of the loader's consumer group are in the broker's copy and may be ahead of the commit log; only
lag tools read them. The broker's copy is one instant of all its partitions (`broker.snapshot`).

Copying the files of tables may take long. The broker's snapshot is therefore taken directly after the state of the
commit log is read: messages that retention deletes during the backup are in the snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from headrace.broker import snapshot as broker_snapshot
from headrace.broker.data_directory import LOCK_FILE, RESERVE_FILE, SNAPSHOT_DIRECTORY
from headrace.broker.errors import BrokerError
from headrace.broker.inspect.verify import verify as verify_broker
from headrace.broker.producer_ids import FILE_NAME as PRODUCER_IDS
from headrace.broker.producer_ids import read_producer_ids
from headrace.broker.snapshot import LogSnapshot, open_snapshot
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.pipeline.state_backup.databases import copy_derby, copy_sqlite, dump_postgresql
from headrace.pipeline.state_backup.manifest import BackupError, BackupWriter, Manifest, Store
from headrace.pipeline.state_backup.stores import REGISTRY_DUMP, REGISTRY_FILE, StorePlaces, store_places
from headrace.pipeline.state_backup.warehouse import CopiedTables, copy_commits, copy_hints, copy_tables
from headrace.pipeline.storage import location_of
from headrace.settings import Settings
from headrace.settings.addresses import warehouse_location
from headrace.version import VERSION, commit_id

ATTEMPTS_MAX = 3
"""Attempts to copy the tables as of one commit. One fails if files of that commit are deleted meanwhile, by `expire` or
a day after a rewrite."""
BROKER_FILES_OMITTED = frozenset({LOCK_FILE, RESERVE_FILE, broker_snapshot.SOCKET_NAME})
BATCH_CHECKS = ("batches", "offsets")
FINDINGS_MAX = 20


@dataclass(slots=True)
class _Progress:
    """Positions, reasons and findings that are collected for the manifest."""

    positions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    commit_number: int = 0


def back_up(
    settings: Settings,
    target: Path,
    *,
    without: Collection[Store] = (),
    progress: Callable[[str], None] = lambda step: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Manifest:
    """Backs up the state of this machine into the directory `target`, which must be new or empty. Returns the manifest.
    If the backup fails, the directory has no manifest.

    Args:
        without: stores that are left out.

    Raises:
        BackupError, BrokerError, LoaderError: a store cannot be copied.
        OSError: a file cannot be read or written.
    """
    places, started_at = store_places(settings, without), now()
    target = target.resolve()
    _check_target(target, settings.data_dir.resolve(), places)
    collected = _Progress()
    existing = _existing(places, collected)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)  # it contains messages
    writer = BackupWriter(target, progress)
    _copy_stores(existing, places.database_url, writer, collected, settings.data_dir.resolve())
    manifest = Manifest(
        release=VERSION,
        git_commit=commit_id(),
        started_at=_text(started_at),
        finished_at=_text(now()),
        data_dir=str(settings.data_dir.resolve()),
        warehouse=location_of(warehouse_location(settings)),
        commit_number=collected.commit_number,
        stores=collected.positions,
        left_out=collected.left_out,
        findings=tuple(collected.findings),
        files=writer.files,
    )
    progress("writing the manifest")
    writer.finish(manifest)
    return manifest


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_target(target: Path, data_dir: Path, places: StorePlaces) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} is not empty; name a new directory for each backup")
    for directory in (data_dir, *places.paths.values()):
        if target.is_relative_to(directory):
            raise BackupError(f"{target} is inside of {directory}, which it is to back up; name a directory elsewhere")


def _existing(places: StorePlaces, collected: _Progress) -> dict[Store, Path]:
    """Returns the places of the stores that exist, and collects the reasons for the others."""
    collected.left_out |= {str(store): reason for store, reason in places.left_out.items()}
    existing = {}
    for store, path in places.paths.items():
        if store is Store.TABLES and Store.COMMIT_LOG not in places.paths:
            collected.left_out[store] = "their commit log is left out, which lists their files"
        elif path.exists():
            existing[store] = path
        else:
            collected.left_out[store] = f"{path} does not exist"
    if not existing and not places.database_url:
        reasons = "; ".join(f"{store}: {reason}" for store, reason in collected.left_out.items())
        raise BackupError(f"there is nothing to back up ({reasons}); correct --data-dir or the settings")
    return existing


def _copy_stores(
    paths: dict[Store, Path], database_url: str, writer: BackupWriter, collected: _Progress, data_dir: Path
) -> None:
    """Copies the stores in the order that the module explains."""
    log_directory = paths.get(Store.COMMIT_LOG)
    if log_directory is not None:
        copy_hints(log_directory, writer)
    if Store.METASTORE in paths:
        copy_derby(writer, data_dir)
        collected.positions[Store.METASTORE] = "Derby"
    if Store.AUDIT in paths:
        copy_sqlite(writer, paths[Store.AUDIT], f"{Store.AUDIT}/{paths[Store.AUDIT].name}")
        collected.positions[Store.AUDIT] = "SQLite"
    _copy_log_and_broker(paths, writer, collected)
    if Store.REGISTRY in paths:
        copy_sqlite(writer, paths[Store.REGISTRY], f"{Store.REGISTRY}/{REGISTRY_FILE}")
        collected.positions[Store.REGISTRY] = "SQLite"
    elif database_url:
        dump_postgresql(writer, database_url, f"{Store.REGISTRY}/{REGISTRY_DUMP}")
        collected.positions[Store.REGISTRY] = "PostgreSQL"


def _copy_log_and_broker(paths: dict[Store, Path], writer: BackupWriter, collected: _Progress) -> None:
    """Copies commit log, tables and broker. Starts again with a newer state of the log if files of its state were
    deleted meanwhile."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        writer.remove(Store.TABLES)  # files that an earlier attempt copied may not belong to the newer state
        log = _read_log(paths.get(Store.COMMIT_LOG))
        if Store.BROKER not in paths:
            tables = _copy_tables(log, paths, writer)
            if _is_final(tables, log, attempt):
                break
            continue
        with open_snapshot(paths[Store.BROKER]) as snapshot:
            tables = _copy_tables(log, paths, writer)
            if _is_final(tables, log, attempt):
                _copy_broker(paths[Store.BROKER], snapshot, writer, collected)
                break
    if log is not None:
        copy_commits(log, paths[Store.COMMIT_LOG], writer)
        collected.commit_number = log.state.commit_number
        collected.positions[Store.COMMIT_LOG] = f"commit {log.state.commit_number:,}"
    if tables is not None:
        collected.positions[Store.TABLES] = f"{tables.files:,} files"
        if tables.missing:
            shown = ", ".join(tables.missing[:3])
            collected.findings.append(
                f"{len(tables.missing):,} committed files are missing in the warehouse, such as {shown}; see headrace "
                "verify"
            )


def _read_log(directory: Path | None) -> CommitLog | None:
    """Reads the state of the commit log that is backed up."""
    if directory is None:
        return None
    log = CommitLog(LocalCommitStorage(directory), read_only=True)
    log.check_format(writing=False)
    log.read_state()
    return log


def _copy_tables(log: CommitLog | None, paths: dict[Store, Path], writer: BackupWriter) -> CopiedTables | None:
    if log is None or Store.TABLES not in paths:
        return None
    return copy_tables(log, paths[Store.TABLES], writer)


def _is_final(tables: CopiedTables | None, log: CommitLog | None, attempt: int) -> bool:
    """Whether no further attempt is needed or useful: no file is missing, or nothing was committed that could have
    deleted it."""
    if tables is None or log is None or not tables.missing or attempt == ATTEMPTS_MAX:
        return True
    return log.head() == log.state.commit_number


def _copy_broker(directory: Path, snapshot: LogSnapshot | None, writer: BackupWriter, collected: _Progress) -> None:
    """Copies the broker's snapshot, or the files of a stopped broker, and checks all batches of the copy."""
    if snapshot is None:
        _copy_stopped_broker(directory, writer)
        partitions = sum(1 for path in (writer.root / Store.BROKER).iterdir() if path.is_dir())
    else:
        for source, name, size in broker_snapshot.segment_copies(snapshot):
            if source is None:
                writer.write(f"{Store.BROKER}/{name}", b"")
            else:
                writer.copy(source, f"{Store.BROKER}/{name}", size)
        producer_ids = read_producer_ids(directory / PRODUCER_IDS)
        for name, content in broker_snapshot.data_directory_files(snapshot, producer_ids):
            writer.write(f"{Store.BROKER}/{name}", content)
        partitions = len(snapshot.partitions)
    collected.positions[Store.BROKER] = f"{partitions:,} partitions"
    collected.findings += _batch_findings(writer)[:FINDINGS_MAX]


def _batch_findings(writer: BackupWriter) -> list[str]:
    """Reads all batches of the broker's copy. Returns the damaged ones; indexes are not in the copy of a running
    broker, whose next start builds them."""
    try:
        return [
            f"broker: {finding.where}: {finding.message}"
            for report in verify_broker(writer.root / Store.BROKER, writer.progress)
            for finding in report.findings
            if not finding.is_note and finding.check in BATCH_CHECKS
        ]
    except BrokerError as error:
        return [f"broker: {error}"]


def _copy_stopped_broker(directory: Path, writer: BackupWriter) -> None:
    for parent, directories, names in os.walk(directory, followlinks=True):
        if SNAPSHOT_DIRECTORY in directories:
            directories.remove(SNAPSHOT_DIRECTORY)
        for name in names:
            path = Path(parent, name)
            if name not in BROKER_FILES_OMITTED and path.is_file():
                writer.copy(path, f"{Store.BROKER}/{path.relative_to(directory)}")
