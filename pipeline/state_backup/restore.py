"""Restores a backup: checks all of it, copies every store next to its place, then renames all copies to their places.

Nothing is changed before the whole backup was read and compared with its manifest, and nothing is deleted: an existing
store is renamed to `<name>.before-restore-<time>`. If the command is killed before the renames, nothing
has changed; if it is killed between them, run it again with `--replace`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from headrace.broker.data_directory import exclude_brokers
from headrace.broker.errors import BrokerError
from headrace.broker.snapshot import skip_producer_ids
from headrace.hive_ddl.executors.derby import find_derby_owner
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.storage.local.lease import Lease
from headrace.pipeline.state_backup.databases import has_tables, restore_postgresql
from headrace.pipeline.state_backup.manifest import (
    BackupError,
    BackupFile,
    Manifest,
    Store,
    copy_file,
    fsync_directory,
    fsync_tree,
    read_manifest,
    verify_files,
)
from headrace.pipeline.state_backup.stores import REGISTRY_DUMP, StorePlaces, store_places
from headrace.pipeline.state_backup.unknown_files import compare_files
from headrace.pipeline.state_backup.warehouse import STAGING
from headrace.pipeline.storage import lease_path, location_of, warehouse_storage
from headrace.pipeline.up.part import UpError
from headrace.pipeline.up.up_file import UpFile
from headrace.settings import Settings
from headrace.settings.addresses import UP_FILE_NAME, warehouse_location

SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of files that belong to an SQLite database; files of the former database would damage a restored one."""
NAMES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """A store that is restored: its files, and the file or directory that they become."""

    store: Store
    files: tuple[BackupFile, ...]
    target: Path

    @property
    def temporary(self) -> Path:
        return self.target.with_name(f"{self.target.name}.restoring")


@dataclass(slots=True)
class RestoreReport:
    """The result of a restore. `restored` has the place of each store. `notes` are facts for the user; `findings` need
    action."""

    manifest: Manifest
    restored: dict[str, str] = field(default_factory=dict)
    moved_aside: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def restore(
    settings: Settings,
    backup: Path,
    *,
    replaces: bool = False,
    is_dry: bool = False,
    progress: Callable[[str], None] = lambda step: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> RestoreReport:
    """Restores a backup into the places that the settings name. Returns the report.

    Args:
        replaces: whether stores that exist are moved aside; otherwise they are an error.
        is_dry: whether the backup and the places are only checked.

    Raises:
        BackupError: the backup is incomplete or damaged, a place is in use or not empty, or a rename failed.
        OSError: a file cannot be read or written.
    """
    manifest = read_manifest(backup)
    places = store_places(settings)
    report = RestoreReport(manifest, findings=list(manifest.findings))
    placements = _placements(manifest, places, settings, report)
    dump = _dump(backup, manifest, places)
    verify_files(backup, manifest.files, progress)
    _check_places(placements, dump, places, replaces=replaces)
    report.restored = {one.store: str(one.target) for one in placements}
    if dump is not None:
        report.restored[Store.REGISTRY] = "PostgreSQL"
    if is_dry:
        return report
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with _exclusive(settings, places):
        try:
            _stage(backup, placements, progress)
            if dump is not None:
                progress("running pg_restore")
                restore_postgresql(dump, places.database_url)
        except BaseException:
            for one in placements:
                _remove(one.temporary)
            raise
        _swap(placements, f"before-restore-{now().strftime('%Y%m%dT%H%M%SZ')}", report)
        progress("comparing commits and files")
        _compare(settings, manifest, report)
    return report


def _placements(
    manifest: Manifest, places: StorePlaces, settings: Settings, report: RestoreReport
) -> tuple[Placement, ...]:
    placements = []
    for store in Store:
        files = tuple(manifest.files_of(store))
        if not files or any(file.path_in_store == REGISTRY_DUMP for file in files):
            continue
        reason = places.left_out.get(store, "")
        if store is Store.METASTORE and manifest.warehouse != location_of(warehouse_location(settings)):
            reason = (
                f"it names files in {manifest.warehouse}, another warehouse; run `headrace hive apply`, which creates "
                "the tables again; views and tables of others are lost"
            )
        if store is Store.TABLES and Store.COMMIT_LOG in places.left_out and not reason:
            reason = f"its commit log is left out: {places.left_out[Store.COMMIT_LOG]}"
        if store is Store.REGISTRY and store not in places.paths and not reason:
            reason = "it is an SQLite file, and registry.database_url names PostgreSQL; use headrace registry import"
        if reason:
            report.notes.append(f"{store} not restored: {reason}")
        else:
            placements.append(Placement(store, files, places.paths[store]))
    return tuple(placements)


def _dump(backup: Path, manifest: Manifest, places: StorePlaces) -> Path | None:
    """Returns the dump of the registry's PostgreSQL database in the backup, None if there is none.

    Raises:
        BackupError: the settings name no PostgreSQL database.
    """
    path = f"{Store.REGISTRY}/{REGISTRY_DUMP}"
    if not any(file.path == path for file in manifest.files):
        return None
    if not places.database_url:
        raise BackupError(
            "the backup has a dump of PostgreSQL, and registry.database_url names no PostgreSQL; set it to an empty "
            "database"
        )
    return backup / path


def _check_places(placements: tuple[Placement, ...], dump: Path | None, places: StorePlaces, *, replaces: bool) -> None:
    for one in placements:
        if one.target.is_mount():
            raise BackupError(
                f"{one.target} is a mount point and cannot be renamed; use a directory below it ({_place_setting(one)})"
            )
    used = [str(one.target) for one in placements if _is_in_use(one.target)]
    if dump is not None and has_tables(places.database_url):
        used.append("the database of registry.database_url")
    if used and not replaces:
        raise BackupError(
            f"{used[0]} is not empty{f', and {len(used) - 1} others' if used[1:] else ''}; name another --data-dir, or "
            "move it aside with --replace (a PostgreSQL database is overwritten)"
        )


def _place_setting(one: Placement) -> str:
    return "loader.warehouse" if one.store in (Store.TABLES, Store.COMMIT_LOG) else "--data-dir"


def _is_in_use(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextlib.contextmanager
def _exclusive(settings: Settings, places: StorePlaces) -> Iterator[None]:
    """Excludes `headrace up`, brokers and loads while the context is open.

    Raises:
        BackupError: one of them runs, or another process has the metastore open.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(UpFile(settings.data_dir / UP_FILE_NAME))
            if Store.BROKER in places.paths and places.paths[Store.BROKER].exists():
                stack.enter_context(exclude_brokers(places.paths[Store.BROKER]))
        except (UpError, BrokerError) as error:
            raise BackupError(f"{error}; stop it before a restore") from error
        lease = Lease(lease_path(settings))
        if lease_path(settings).parent.exists():
            if lease.acquire(0) is not None:
                raise BackupError("a load is running; restore when it has ended")
            stack.callback(lease.release)
        owner = find_derby_owner(places.paths[Store.METASTORE]) if Store.METASTORE in places.paths else None
        if owner is not None:
            raise BackupError(f"{owner} has the metastore open; stop it before a restore")
        yield


def _stage(backup: Path, placements: tuple[Placement, ...], progress: Callable[[str], None]) -> None:
    """Copies each store next to its place."""
    for one in placements:
        _remove(one.temporary)
        for file in one.files:
            progress(f"restoring {file.path}")
            is_single = one.store in (Store.AUDIT, Store.REGISTRY)
            target = one.temporary if is_single else one.temporary / file.path_in_store
            copy_file(backup / file.path, target, file.mode)
        if one.store is Store.BROKER:
            skip_producer_ids(one.temporary)
        if one.temporary.is_dir():
            fsync_tree(one.temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _swap(placements: tuple[Placement, ...], suffix: str, report: RestoreReport) -> None:
    """Renames the former stores aside, then the copies to their places. The tables come before a commit log inside of
    their directory."""
    log = next((one for one in placements if one.store is Store.COMMIT_LOG), None)
    tables = next((one for one in placements if one.store is Store.TABLES), None)
    if log is not None and tables is not None and log.target.parent == tables.target:
        # The copy of the log becomes a part of the copy of the warehouse, and both get their places by one rename.
        for path in sorted(log.temporary.iterdir()):
            (tables.temporary / log.target.name).mkdir(parents=True, exist_ok=True)
            path.rename(tables.temporary / log.target.name / path.name)
        log.temporary.rmdir()
        fsync_tree(tables.temporary)
        placements = tuple(one for one in placements if one is not log)
        log = None
    for one in placements:
        former = one.target.with_name(f"{one.target.name}.{suffix}")
        companions = SQLITE_COMPANIONS if one.store in (Store.AUDIT, Store.REGISTRY) else ()
        for end in ("", *companions):
            path = one.target.with_name(one.target.name + end)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            if path.exists():
                path.rename(former.with_name(former.name + end))
                if not end:
                    report.moved_aside.append(str(former))
        one.temporary.rename(one.target)
        if one is log and (former / STAGING).exists():
            # Files that are committed and not published yet are only in staging.
            (former / STAGING).rename(one.target / STAGING)
        fsync_directory(one.target.parent)


def _compare(settings: Settings, manifest: Manifest, report: RestoreReport) -> None:
    """Compares the restored commit log with the files of the tables, which may be newer, and adds the result to the
    report."""
    if Store.COMMIT_LOG not in report.restored:
        if Store.BROKER in report.restored:
            report.notes.append(
                "the commit log is not part of the backup: if it is newer, the next load reports the offsets that the "
                "broker no longer has"
            )
        return
    storage = warehouse_storage(settings)
    log = CommitLog(storage.commits)
    log.read_state()
    found = compare_files(log, storage.files)
    if found.moved:
        report.findings.append(
            f"{len(found.moved):,} files of commits after {manifest.commit_number:,} were moved to the directory "
            f"_foreign of their topic ({_shown(found.moved)}). Messages that the brokers still have are loaded again; "
            "rows of others are only in these files"
        )
    if found.missing and Store.TABLES not in report.restored:
        report.findings.append(
            f"{len(found.missing):,} files of the commit log are missing ({_shown(found.missing)}), for example "
            "because a later compaction replaced them; load them again with headrace backfill, see headrace verify"
        )


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
