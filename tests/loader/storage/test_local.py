"""Put-if-absent has exactly one winner in any race; any process may repeat publishing."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import threading
from pathlib import Path

import pytest

from headrace.loader.errors import NoHardLinks, PublishedFileLost, PublishedNameTaken, StorageError, UnwritableWarehouse
from headrace.loader.storage.local import local_storage
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.protocols import FinishedFile, Publication
from support.loader.file_checksums import checksum_of

ROUNDS = 3000
THREADS = 4


def test_exactly_one_of_many_threads_puts_each_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # these races do not depend on durability, and 12,000 fsyncs are slow
    storage = LocalCommitStorage(tmp_path)
    winners: list[list[int]] = [[] for _ in range(ROUNDS)]
    start = threading.Barrier(THREADS)

    def race(writer: int) -> None:
        for number in range(ROUNDS):
            start.wait()
            if storage.put_if_absent(f"log/{number}", f"writer {writer}".encode()):
                winners[number].append(writer)

    threads = [threading.Thread(target=race, args=(writer,)) for writer in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(found) for found in winners] == [1] * ROUNDS
    assert all(storage.read(f"log/{n}") == f"writer {found[0]}".encode() for n, found in enumerate(winners))
    assert storage.children("tmp") == ()


def _race_in_process(root: str, writer: int, won: object) -> None:
    storage = LocalCommitStorage(Path(root))
    for number in range(200):
        if storage.put_if_absent(f"log/{number}", str(writer).encode()):
            won.put((number, writer))  # type: ignore[attr-defined]
    won.put(None)  # type: ignore[attr-defined]


def test_exactly_one_of_several_processes_puts_each_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    won = context.Queue()
    processes = [context.Process(target=_race_in_process, args=(str(tmp_path), writer, won)) for writer in range(3)]
    for process in processes:
        process.start()
    found: list[tuple[int, int]] = []
    ended = 0
    while ended < len(processes):
        item = won.get(timeout=60)
        ended += item is None
        found += [item] if item is not None else []
    for process in processes:
        process.join()
    assert sorted(number for number, _ in found) == list(range(200))
    assert all((tmp_path / "log" / str(number)).read_text() == str(writer) for number, writer in found)


def test_put_if_absent_does_not_change_an_existing_file(tmp_path: Path) -> None:
    storage = LocalCommitStorage(tmp_path)
    assert storage.put_if_absent("log/1", b"first")
    assert not storage.put_if_absent("log/1", b"second")
    assert storage.read("log/1") == b"first"


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(NoHardLinks) as refused:
        LocalCommitStorage(tmp_path).prepare()
    assert (refused.value.path, refused.value.reason) == (str(tmp_path), "Operation not permitted")


def test_a_file_system_whose_links_replace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: Path(source).replace(target))
    with pytest.raises(NoHardLinks) as refused:
        LocalCommitStorage(tmp_path).prepare()
    assert refused.value.path == str(tmp_path)


def test_error_of_an_unwritable_warehouse_has_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableWarehouse) as refused:
        LocalCommitStorage(tmp_path / "file" / "warehouse").prepare()
    assert refused.value.path == str(tmp_path / "file" / "warehouse")


def test_error_of_a_read_only_warehouse_has_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UnwritableWarehouse) as refused:
        LocalCommitStorage(tmp_path).prepare()
    assert (refused.value.path, refused.value.reason) == (str(tmp_path), "Read-only file system")


def test_error_of_a_full_disk_suggests_free_space_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnwritableWarehouse) as refused:
        LocalCommitStorage(tmp_path).prepare()
    assert refused.value.reason == "No space left on device"
    assert "loader.warehouse" not in str(refused.value)


def test_preparing_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = LocalCommitStorage(tmp_path / "new")
    storage.prepare()
    storage.prepare()
    assert storage.children("tmp") == ()


class Warehouse:
    """A storage and one committed file, `whole`, staged by run `w`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = local_storage(root)
        self.staged = root / "_headrace" / "staging" / "w" / "task-0" / "a.avro"
        self.final = root / "t" / "dt=2026-01-01" / "hr=00" / "0-1-w-0-0.avro"
        self.name = self.final.relative_to(root).as_posix()

    def stage(self, content: bytes = b"whole") -> None:
        self.staged.parent.mkdir(parents=True, exist_ok=True)
        self.staged.write_bytes(content)

    def publish(self) -> bool:
        """Returns whether the file was found."""
        checksum = checksum_of(b"whole")
        return not self.storage.files.publish([Publication("t", "w", "task-0/a.avro", self.name, 5, checksum)])


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


def test_publishing_is_idempotent(warehouse: Warehouse) -> None:
    warehouse.stage()
    for _ in range(2):
        warehouse.publish()
        assert warehouse.final.read_bytes() == b"whole"
        assert not warehouse.staged.exists()


def test_publishing_continues_after_a_crash_between_link_and_unlink(warehouse: Warehouse) -> None:
    warehouse.stage()
    warehouse.final.parent.mkdir(parents=True)
    os.link(warehouse.staged, warehouse.final)
    warehouse.publish()
    assert not warehouse.staged.exists()


def test_a_file_missing_in_staging_and_table_is_reported(warehouse: Warehouse) -> None:
    assert not warehouse.publish()
    warehouse.stage()
    assert warehouse.publish()
    assert warehouse.publish()


def test_a_truncated_file_is_never_published(warehouse: Warehouse) -> None:
    warehouse.stage(b"cut")
    with pytest.raises(PublishedFileLost, match=r"\bt\b"):
        warehouse.publish()
    assert not warehouse.final.exists()


def test_a_truncated_published_file_is_detected(warehouse: Warehouse) -> None:
    warehouse.final.parent.mkdir(parents=True)
    warehouse.final.write_bytes(b"cut")
    with pytest.raises(PublishedFileLost, match=r"\b3\b.*\b5\b"):
        warehouse.publish()


def test_publishing_to_a_name_of_another_file_is_refused(warehouse: Warehouse) -> None:
    warehouse.stage()
    warehouse.final.parent.mkdir(parents=True)
    warehouse.final.write_bytes(b"other")
    with pytest.raises(PublishedNameTaken, match=re.escape(str(warehouse.staged))):
        warehouse.publish()
    assert (warehouse.staged.read_bytes(), warehouse.final.read_bytes()) == (b"whole", b"other")
    warehouse.final.write_bytes(b"whole")  # a copy, as restored from a backup
    warehouse.publish()
    assert not warehouse.staged.exists()


def test_threads_that_publish_the_same_file_all_succeed(warehouse: Warehouse) -> None:
    failures: list[Exception] = []

    def publish() -> None:
        try:
            warehouse.publish()
        except Exception as error:
            failures.append(error)

    for _ in range(200):
        warehouse.final.unlink(missing_ok=True)
        warehouse.stage()
        threads = [threading.Thread(target=publish) for _ in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert warehouse.final.read_bytes() == b"whole"
    assert failures == []


def test_publishing_while_empty_directories_are_removed(warehouse: Warehouse) -> None:
    files, done = warehouse.storage.files, threading.Event()

    def remove_missing() -> None:
        while not done.is_set():
            files.remove([f"{Path(warehouse.name).parent}/gone.avro"])

    thread = threading.Thread(target=remove_missing)
    thread.start()
    try:
        for _ in range(300):
            warehouse.stage()
            warehouse.publish()
            files.remove([warehouse.name])
    finally:
        done.set()
        thread.join()


def test_link_or_copy_gives_a_file_a_second_name(warehouse: Warehouse) -> None:
    warehouse.stage()
    warehouse.publish()
    files = warehouse.storage.files
    for _ in range(2):
        files.link_or_copy("t", warehouse.name, "t/_g1/dt=2026-01-01/hr=00/0-1-w-0-0.avro")
    files.remove([warehouse.name])
    files.link_or_copy("t", warehouse.name, "t/_g1/dt=2026-01-01/hr=00/0-1-w-0-0.avro")
    assert files.length("t/_g1/dt=2026-01-01/hr=00/0-1-w-0-0.avro") == 5
    with pytest.raises(PublishedFileLost, match=re.escape(warehouse.name)):
        files.link_or_copy("t", warehouse.name, "t/_g2/dt=2026-01-01/hr=00/0-1-w-0-0.avro")


def test_removing_files_removes_empty_directories(warehouse: Warehouse) -> None:
    warehouse.stage()
    warehouse.publish()
    files = warehouse.storage.files
    files.put("t/_schema/current.avsc", b"{}")
    files.remove([warehouse.name, "t/dt=2026-01-02/hr=00/gone.avro"])
    assert files.children("t") == ("_schema",)
    assert files.children(warehouse.name) == ()


def test_put_replaces_files_atomically(warehouse: Warehouse) -> None:
    files = warehouse.storage.files
    for content in (b"1", b"1", b"22"):
        files.put("t/_schema/current.avsc", content)
        with files.open("t/_schema/current.avsc") as file:
            assert file.read() == content
    assert files.children("t/_schema") == ("current.avsc",)
    assert files.length("t/_schema/other.avsc") is None


def test_put_all_replaces_many_files(warehouse: Warehouse) -> None:
    files = warehouse.storage.files
    names = [f"t{number}/_schema/{name}.avsc" for number in range(20) for name in ("a", "current")]
    for content in (b"1", b"22"):
        files.put_all({name: content + name.encode() for name in names})
        for name in names:
            with files.open(name) as file:
                assert file.read() == content + name.encode()
    assert files.children("t0/_schema") == ("a.avsc", "current.avsc")


def test_staged_files_are_checked(warehouse: Warehouse) -> None:
    staging = warehouse.storage.staging
    warehouse.stage()
    staging.persist("w", [FinishedFile("task-0/a.avro", 5)])
    with pytest.raises(StorageError, match=r"\b5\b.*\b6\b"):
        staging.persist("w", [FinishedFile("task-0/a.avro", 6)])
    with pytest.raises(StorageError, match=r"b\.avro"):
        staging.persist("w", [FinishedFile("task-0/b.avro", 5)])
    staging.persist("nothing", [])


def test_age_of_staged_runs(warehouse: Warehouse) -> None:
    staging = warehouse.storage.staging
    assert staging.run_ids() == frozenset()
    warehouse.stage()
    staging.write_file("v", "plan.json", b"{}")
    assert staging.run_ids() == {"v", "w"}
    modified_ms = max(int(path.stat().st_mtime * 1000) for path in (warehouse.staged, warehouse.staged.parent))
    assert staging.is_older("w", modified_ms + 1001, 1000)
    assert not staging.is_older("w", modified_ms + 1000, 1000)
    assert not staging.is_older("gone", modified_ms + 5000, 1000)
    staging.drop("w")
    staging.drop("w")
    assert staging.run_ids() == {"v"}


def test_temporary_files_of_killed_puts_are_deleted(tmp_path: Path) -> None:
    commits = LocalCommitStorage(tmp_path)
    commits.put_if_absent("log/1", b"1")
    left = tmp_path / "tmp" / ".left"
    left.write_bytes(b"x")
    written_ms = int(left.stat().st_mtime * 1000)
    commits.delete_temporary_files(written_ms + 1000, 1000)
    assert left.exists()
    commits.delete_temporary_files(written_ms + 1001, 1000)
    assert not left.exists()
    assert commits.read("log/1") == b"1"


def test_a_failed_move_of_an_uncommitted_file_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = local_storage(tmp_path).files
    (tmp_path / "t" / "hr=00" / "sub").mkdir(parents=True)
    (tmp_path / "t" / "hr=00" / "x").write_bytes(b"mine")

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "rename", refuse)
    for name in ("x", "sub"):
        with pytest.raises(OSError, match="another device"):
            files.move_uncommitted(f"t/hr=00/{name}", f"t/_foreign/hr=00/{name}")
    assert files.children("t") == ("hr=00",)
    assert files.children("t/hr=00") == ("sub", "x")


@pytest.mark.parametrize("is_recreated", [False, True])
def test_only_the_present_uncommitted_file_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recreated: bool
) -> None:
    """Another process moves the file in between, and a new file with the same name may exist."""
    files = local_storage(tmp_path).files
    source = tmp_path / "t" / "hr=00" / "x"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"first")
    rename = os.rename

    def overtaken(source_path: object, target_path: object) -> None:
        monkeypatch.undo()
        assert files.move_uncommitted("t/hr=00/x", "t/_foreign/hr=00/x.1")
        if is_recreated:
            source.write_bytes(b"second")
        rename(source_path, target_path)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(os, "rename", overtaken)
    assert files.move_uncommitted("t/hr=00/x", "t/_foreign/hr=00/x") == is_recreated
    found = {path.name: path.read_bytes() for path in (tmp_path / "t" / "_foreign" / "hr=00").iterdir()}
    assert found == {"x.1": b"first"} | ({"x": b"second"} if is_recreated else {})
    assert not source.exists()
