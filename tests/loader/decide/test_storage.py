"""Put-if-absent has exactly one winner, whatever races; publishing may be repeated by anybody."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from headrace.loader.decide.storage import LocalStorage, force_to_disk, publish
from headrace.loader.errors import NoHardLinks, PublishedFileLost, StorageError, UnwritableWarehouse

ROUNDS = 3000
THREADS = 4


def test_of_many_threads_exactly_one_puts_each_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # durability is not raced here, and 12,000 are slow
    storage = LocalStorage(tmp_path)
    winners: list[list[int]] = [[] for _ in range(ROUNDS)]
    start = threading.Barrier(THREADS)

    def race(me: int) -> None:
        for number in range(ROUNDS):
            start.wait()
            if storage.put_if_absent(f"log/{number}", f"writer {me}".encode()):
                winners[number].append(me)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(found) for found in winners] == [1] * ROUNDS
    assert all(storage.read(f"log/{n}") == f"writer {found[0]}".encode() for n, found in enumerate(winners))
    assert storage.children("tmp") == ()


def _race_in_process(root: str, me: int, won: object) -> None:
    storage = LocalStorage(Path(root))
    for number in range(200):
        if storage.put_if_absent(f"log/{number}", str(me).encode()):
            won.put((number, me))  # type: ignore[attr-defined]
    won.put(None)  # type: ignore[attr-defined]


def test_of_several_processes_exactly_one_puts_each_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    won = context.Queue()
    processes = [context.Process(target=_race_in_process, args=(str(tmp_path), me, won)) for me in range(3)]
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
    assert all((tmp_path / "log" / str(number)).read_text() == str(me) for number, me in found)


def test_a_name_that_is_taken_keeps_its_content(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.put_if_absent("log/1", b"first")
    assert not storage.put_if_absent("log/1", b"second")
    assert storage.read("log/1") == b"first"


def test_a_file_system_without_hard_links_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(NoHardLinks, match="cannot make hard links"):
        LocalStorage(tmp_path).prepare()


def test_a_file_system_whose_links_replace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: Path(source).replace(target))
    with pytest.raises(NoHardLinks, match="linked twice"):
        LocalStorage(tmp_path).prepare()


def test_an_unwritable_warehouse_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableWarehouse, match=r"cannot write to the warehouse .*file"):
        LocalStorage(tmp_path / "file" / "warehouse").prepare()


def test_a_read_only_warehouse_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(LocalStorage, "put_if_absent", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UnwritableWarehouse, match=r"cannot write to the warehouse .*: Read-only file system"):
        LocalStorage(tmp_path).prepare()


def test_a_full_disk_needs_room_and_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalStorage, "put_if_absent", refuse)
    with pytest.raises(UnwritableWarehouse, match=r"No space left on device; make room there$"):
        LocalStorage(tmp_path).prepare()


def test_preparing_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "new")
    storage.prepare()
    storage.prepare()
    assert storage.children("tmp") == ()


def test_publishing_moves_the_file_once_and_may_be_repeated(tmp_path: Path) -> None:
    staged, final = tmp_path / "staging" / "a", tmp_path / "topic" / "dt=2026-01-01" / "0-1-0-0.avro"
    staged.parent.mkdir()
    staged.write_bytes(b"whole")
    assert publish("t", staged, final, 5)
    assert final.read_bytes() == b"whole"
    assert not staged.exists()
    assert not publish("t", staged, final, 5)


def test_publishing_goes_on_after_a_crash_between_link_and_unlink(tmp_path: Path) -> None:
    staged, final = tmp_path / "a", tmp_path / "b"
    staged.write_bytes(b"whole")
    os.link(staged, final)
    assert not publish("t", staged, final, 5)
    assert not staged.exists()


@pytest.mark.parametrize("content", [None, b"cut"])
def test_a_lost_or_cut_file_is_never_published(tmp_path: Path, content: bytes | None) -> None:
    staged, final = tmp_path / "a", tmp_path / "b"
    if content is not None:
        staged.write_bytes(content)
    with pytest.raises(PublishedFileLost, match="topic t is lost"):
        publish("t", staged, final, 5)
    assert not final.exists()


def test_threads_that_publish_the_same_file_all_succeed(tmp_path: Path) -> None:
    made: list[bool] = []
    for number in range(200):
        staged, final = tmp_path / f"s{number}", tmp_path / f"f{number}"
        staged.write_bytes(b"whole")
        threads = [threading.Thread(target=lambda s=staged, f=final: made.append(publish("t", s, f, 5))) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 400
    assert sum(made) == 200


def test_a_staged_file_of_another_length_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    force_to_disk(tmp_path / "a", 4)
    with pytest.raises(StorageError, match="has 4 bytes and should have 5"):
        force_to_disk(tmp_path / "a", 5)
    with pytest.raises(StorageError, match="cannot be opened"):
        force_to_disk(tmp_path / "b", 5)
