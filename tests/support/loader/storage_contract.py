"""The contract of every storage as tests. A class of tests for each implementation provides the fixture `storage`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.loader.errors import PublishedFileLost, PublishedNameTaken, StorageError
from headrace.loader.storage.protocols import FinishedFile, Publication, Storage
from support.loader.file_checksums import checksum_of

DIRECTORY = "t/dt=2026-01-01/hr=00"
NAME = f"{DIRECTORY}/0-1-w-0-0.avro"
SECOND_NAME = f"t/_g1/{NAME[2:]}"
THREADS = 3
FOREVER_MS = 4_000_000_000_000  # a wall clock long after all others


def stage(storage: Storage, content: bytes = b"whole", run_id: str = "w") -> None:
    storage.staging.write_file(run_id, "a.avro", content)


def publish(storage: Storage, name: str = NAME) -> bool:
    """Publishes a staged file under a name. Returns whether the staged file was found."""
    checksum = checksum_of(b"whole")
    return not storage.files.publish([Publication("t", "w", "a.avro", name, 5, checksum)])


def content_of(storage: Storage, name: str) -> bytes | None:
    if storage.files.length(name) is None:
        return None
    with storage.files.open(name) as file:
        return file.read()


def is_staged(storage: Storage, length: int = 5, run_id: str = "w") -> bool:
    try:
        storage.staging.persist(run_id, [FinishedFile("a.avro", length)])
    except StorageError:
        return False
    return True


def in_threads(act: Callable[[int], None]) -> list[BaseException]:
    """Calls the function in several threads at once with the number of the thread. Returns the exceptions raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            act(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class StorageContract:
    """The tests that every storage must pass. `ROUNDS` is the number of repetitions of each test with races; it is
    larger for storages with faster calls."""

    ROUNDS = 50

    def test_exactly_one_of_many_threads_puts_each_name(self, storage: Storage) -> None:
        winners: list[list[int]] = [[] for _ in range(self.ROUNDS)]

        for number in range(self.ROUNDS):

            def put(me: int, number: int = number) -> None:
                if storage.commits.put_if_absent(f"log/{number}", f"writer {me}".encode()):
                    winners[number].append(me)

            assert in_threads(put) == []
        assert [len(found) for found in winners] == [1] * self.ROUNDS
        assert all(storage.commits.read(f"log/{n}") == f"writer {found[0]}".encode() for n, found in enumerate(winners))
        assert storage.commits.children("tmp") == ()

    def test_put_if_absent_does_not_change_an_existing_file(self, storage: Storage) -> None:
        assert storage.commits.put_if_absent("log/1", b"first")
        assert not storage.commits.put_if_absent("log/1", b"second")
        storage.commits.persist("log/1")
        assert storage.commits.read("log/1") == b"first"
        assert storage.commits.exists("log/1")

    def test_preparing_leaves_nothing_behind(self, storage: Storage) -> None:
        storage.commits.prepare()
        storage.commits.prepare()
        assert storage.commits.children("tmp") == ()

    def test_hints_are_replaced_and_removed(self, storage: Storage) -> None:
        commits = storage.commits
        assert (commits.read("head.json"), commits.exists("head.json"), commits.children("cursor")) == (None, False, ())
        for content in (b"1", b"22", b""):
            commits.replace("cursor/a.json", content, fsynced=False)
            assert commits.read("cursor/a.json") == content
        commits.replace("cursor/b.json", b"2")
        assert commits.children("cursor") == ("a.json", "b.json")
        for _ in range(2):
            commits.remove("cursor/a.json")
        assert commits.children("cursor") == ("b.json",)
        assert commits.describe("cursor/b.json").endswith("/_headrace/cursor/b.json")

    def test_large_and_unusual_contents_are_read_back(self, storage: Storage) -> None:
        content = bytes(range(256)) * 8_000
        assert storage.commits.put_if_absent("log/2", content)
        assert storage.commits.read("log/2") == content

    def test_publishing_is_idempotent(self, storage: Storage) -> None:
        stage(storage)
        for _ in range(2):
            assert publish(storage)
            assert content_of(storage, NAME) == b"whole"
            assert not is_staged(storage)
        assert storage.files.children(DIRECTORY) == ("0-1-w-0-0.avro",)

    def test_a_listing_has_the_lengths_of_files_and_none_for_directories(self, storage: Storage) -> None:
        stage(storage)
        assert publish(storage)
        storage.files.put(f"{DIRECTORY}/sub/deep", b"1")
        storage.files.put(f"{DIRECTORY}/empty", b"")
        assert storage.files.lengths(DIRECTORY) == {"0-1-w-0-0.avro": 5, "sub": None, "empty": 0}
        assert storage.files.lengths("t/missing") == storage.files.lengths(NAME) == {}

    def test_publishing_continues_after_a_kill_between_copy_and_delete(self, storage: Storage) -> None:
        stage(storage)
        storage.files.put(NAME, b"whole")
        assert publish(storage)
        assert not is_staged(storage)

    def test_a_file_missing_in_staging_and_table_is_reported(self, storage: Storage) -> None:
        assert not publish(storage)
        stage(storage)
        assert publish(storage)
        assert publish(storage)

    def test_a_truncated_file_is_never_published(self, storage: Storage) -> None:
        stage(storage, b"cut")
        with pytest.raises(PublishedFileLost, match=r"\bt\b"):
            publish(storage)
        assert storage.files.length(NAME) is None
        assert is_staged(storage, 3)

    def test_a_truncated_published_file_is_detected(self, storage: Storage) -> None:
        storage.files.put(NAME, b"cut")
        with pytest.raises(PublishedFileLost, match=r"\b3\b.*\b5\b"):
            publish(storage)

    def test_publishing_to_a_name_of_another_file_is_refused(self, storage: Storage) -> None:
        stage(storage)
        storage.files.put(NAME, b"other")
        with pytest.raises(PublishedNameTaken, match=r"/staging/"):
            publish(storage)
        assert content_of(storage, NAME) == b"other"
        assert is_staged(storage)

    def test_threads_that_publish_the_same_file_all_succeed(self, storage: Storage) -> None:
        for number in range(self.ROUNDS // 5):
            name = f"{DIRECTORY}/{number}.avro"
            stage(storage)
            found: list[bool] = []
            assert in_threads(lambda _, name=name, found=found: found.append(publish(storage, name))) == []  # type: ignore[misc]
            assert found == [True] * THREADS
            assert content_of(storage, name) == b"whole"
            assert not is_staged(storage)

    def test_publishing_while_empty_directories_are_removed(self, storage: Storage) -> None:
        done = threading.Event()

        def tidy() -> None:
            while not done.is_set():
                storage.files.remove([f"{DIRECTORY}/gone.avro"])

        thread = threading.Thread(target=tidy)
        thread.start()
        try:
            for _ in range(self.ROUNDS // 5):
                stage(storage)
                assert publish(storage)
                storage.files.remove([NAME])
        finally:
            done.set()
            thread.join()

    def test_bring_gives_a_file_a_second_name(self, storage: Storage) -> None:
        files = storage.files
        stage(storage)
        publish(storage)
        for _ in range(2):
            files.link_or_copy("t", NAME, SECOND_NAME)
        files.remove([NAME])
        files.link_or_copy("t", NAME, SECOND_NAME)
        assert content_of(storage, SECOND_NAME) == b"whole"
        with pytest.raises(PublishedFileLost, match=NAME):
            files.link_or_copy("t", NAME, f"t/_g2/{NAME[2:]}")
        assert storage.commits.children("tmp") == ()

    def test_removing_files_removes_empty_directories(self, storage: Storage) -> None:
        stage(storage)
        publish(storage)
        storage.files.put("t/_schema/current.avsc", b"{}")
        storage.files.remove([NAME, "t/dt=2026-01-02/hr=00/gone.avro"])
        assert storage.files.children("t") == ("_schema",)
        assert storage.files.children(NAME) == ()

    def test_a_foreign_file_is_moved_and_replaces_nothing(self, storage: Storage) -> None:
        files = storage.files
        aside = "t/_foreign/dt=2026-01-01/hr=00/x"
        assert not files.move_uncommitted(f"{DIRECTORY}/x", aside)
        assert files.children("t/_foreign") == ()
        files.put(NAME, b"whole")
        files.put(f"{DIRECTORY}/x", b"first")
        assert files.move_uncommitted(f"{DIRECTORY}/x", aside)
        files.put(f"{DIRECTORY}/x", b"second")
        with pytest.raises(FileExistsError):
            files.move_uncommitted(f"{DIRECTORY}/x", aside)
        assert (content_of(storage, aside), content_of(storage, f"{DIRECTORY}/x")) == (b"first", b"second")
        assert files.move_uncommitted(f"{DIRECTORY}/x", f"{aside}.1")
        assert (content_of(storage, aside), content_of(storage, f"{aside}.1")) == (b"first", b"second")
        assert files.children(DIRECTORY) == (NAME.rpartition("/")[2],)

    def test_a_foreign_directory_is_moved_with_its_content(self, storage: Storage) -> None:
        files = storage.files
        for name, content in (("a", b"1"), ("deep/b", b"2")):
            files.put(f"{DIRECTORY}/sub/{name}", content)
        assert files.move_uncommitted(f"{DIRECTORY}/sub", "t/_foreign/sub")
        assert files.children("t/_foreign/sub") == ("a", "deep")
        assert content_of(storage, "t/_foreign/sub/deep/b") == b"2"
        assert "sub" not in files.children(DIRECTORY)
        files.put(f"{DIRECTORY}/sub/c", b"3")
        files.put(f"{DIRECTORY}/file", b"4")
        for source in ("sub", "file"):
            with pytest.raises(FileExistsError):
                files.move_uncommitted(f"{DIRECTORY}/{source}", "t/_foreign/sub")
        assert files.children("t/_foreign/sub") == ("a", "deep")
        assert files.children(DIRECTORY) == ("file", "sub")

    def test_concurrent_moves_of_one_uncommitted_file_lose_nothing(self, storage: Storage) -> None:
        for number in range(self.ROUNDS // 5):
            storage.files.put(f"{DIRECTORY}/{number}", b"mine")
            aside = [f"t/_foreign/{number}.{me}" for me in range(THREADS)]
            moved: list[bool] = []

            def move(me: int, number: int = number, aside: list[str] = aside, moved: list[bool] = moved) -> None:
                moved.append(storage.files.move_uncommitted(f"{DIRECTORY}/{number}", aside[me]))

            assert in_threads(move) == []
            assert any(moved)
            assert b"mine" in [content_of(storage, name) for name in aside]
            assert storage.files.length(f"{DIRECTORY}/{number}") is None

    def test_put_replaces_files_atomically(self, storage: Storage) -> None:
        for content in (b"1", b"1", b"22"):
            storage.files.put("t/_schema/current.avsc", content)
            assert content_of(storage, "t/_schema/current.avsc") == content
        assert storage.files.children("t/_schema") == ("current.avsc",)
        assert storage.files.length("t/_schema/other.avsc") is None
        with pytest.raises(FileNotFoundError):
            storage.files.open("t/_schema/other.avsc")

    def test_staged_files_are_checked(self, storage: Storage) -> None:
        staging = storage.staging
        stage(storage)
        staging.persist("w", [FinishedFile("a.avro", 5)])
        with pytest.raises(StorageError, match=r"\b5\b.*\b6\b"):
            staging.persist("w", [FinishedFile("a.avro", 6)])
        with pytest.raises(StorageError, match=r"b\.avro"):
            staging.persist("w", [FinishedFile("b.avro", 5)])
        staging.persist("nothing", [])

    def test_staged_files_move_to_another_run(self, storage: Storage) -> None:
        stage(storage)
        storage.staging.move("w", [FinishedFile("a.avro", 5)], "v")
        assert is_staged(storage, 5, "v")
        assert not is_staged(storage)

    def test_the_driver_writes_files(self, storage: Storage) -> None:
        sink = storage.staging.sink("w")
        for data in (b"wh", b"ole"):
            sink.append("a.avro", data)
            sink.append("b.avro", data)
        sink.finish(["a.avro", "b.avro"])
        sink.abandon()
        storage.staging.persist("w", [FinishedFile(f"{sink.directory}/{name}.avro", 5) for name in "ab"])
        checksum = checksum_of(b"whole")
        assert not storage.files.publish([Publication("t", "w", f"{sink.directory}/a.avro", NAME, 5, checksum)])
        assert content_of(storage, NAME) == b"whole"

    def test_age_of_staged_runs(self, storage: Storage) -> None:
        staging = storage.staging
        assert staging.run_ids() == frozenset()
        stage(storage)
        staging.write_file("v", "plan.json", b"{}")
        assert staging.run_ids() == {"v", "w"}
        assert staging.is_older("w", FOREVER_MS, 1000)
        assert not staging.is_older("w", 1000, 1000)
        assert not staging.is_older("gone", FOREVER_MS, 1000)
        for _ in range(2):
            staging.drop("w")
        assert staging.run_ids() == {"v"}
