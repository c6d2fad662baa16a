"""All storages meet the contract that the loader requires. These need no server; HDFS and S3A are in
tests/component."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.loader.commit.commit_files import CommitFiles
from headrace.loader.errors import NoPutIfAbsent, UnwritableWarehouse
from headrace.loader.storage.hadoop import hadoop_storage
from headrace.loader.storage.local import local_storage
from headrace.loader.storage.protocols import Storage
from support.loader.remote_file_systems import FakeBucket, FakeHdfs
from support.loader.storage_contract import FOREVER_MS, NAME, StorageContract, is_staged, publish, stage


class TestLocal(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        return local_storage(tmp_path)


class TestHdfs(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return hadoop_storage(FakeHdfs(), "hdfs://nn/w")


class TestBucket(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return hadoop_storage(FakeBucket(), "s3a://bucket/w")


def test_an_s3_bucket_without_conditional_put_is_refused() -> None:
    storage = hadoop_storage(FakeBucket(is_conditional=False), "s3a://bucket/w")
    with pytest.raises(NoPutIfAbsent, match="s3a://bucket/w/_headrace"):
        storage.commits.prepare()
    assert storage.commits.children("tmp") == ()


@pytest.mark.parametrize(
    ("number", "names_setting"),
    [(errno.EROFS, False), (errno.EDQUOT, False), (errno.EACCES, True), (errno.EIO, False)],
)
def test_error_of_an_unwritable_file_system_has_its_path_and_reason(number: int, names_setting: bool) -> None:
    class Refusing(FakeHdfs):
        def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
            raise OSError(number, "because", path)

    with pytest.raises(UnwritableWarehouse) as refused:
        hadoop_storage(Refusing(), "hdfs://nn/w").commits.prepare()
    assert (refused.value.path, refused.value.reason) == ("hdfs://nn/w/_headrace", "because")
    assert ("loader.warehouse" in str(refused.value)) is names_setting


def test_temporary_files_of_killed_puts_are_deleted() -> None:
    files = FakeHdfs()
    commits = hadoop_storage(files, "hdfs://nn/w").commits
    commits.put_if_absent("log/1", b"1")
    files.write("hdfs://nn/w/_headrace/tmp/.left", b"x")
    written_ms = files.files["hdfs://nn/w/_headrace/tmp/.left"][1]
    commits.delete_temporary_files(written_ms + 1000, 1000)
    assert commits.children("tmp") == (".left",)
    commits.delete_temporary_files(written_ms + 1001, 1000)
    assert commits.children("tmp") == ()
    assert commits.read("log/1") == b"1"


@pytest.mark.parametrize("is_copied", [False, True])
def test_the_second_of_two_publishers_finds_the_file_of_the_first(is_copied: bool) -> None:
    """After it has checked the staged file, another publisher moves it, or has just copied it."""

    class Overtaken(FakeBucket):
        def move(self, source: str, target: str) -> None:
            if source in self.files:
                self.write(target, self.files[source][0])
                if not is_copied:
                    self.delete(source)
            super().move(source, target)

    storage = hadoop_storage(Overtaken(), "s3a://bucket/w")
    stage(storage)
    assert publish(storage)
    assert not is_staged(storage)


def test_age_of_staging_without_files_is_that_of_its_directory() -> None:
    storage = hadoop_storage(FakeHdfs(), "hdfs://nn/w")
    stage(storage)
    publish(storage)
    assert storage.staging.is_older("w", FOREVER_MS, 1000)


def test_staged_files_of_spark_are_found_by_name() -> None:
    files = FakeHdfs()
    storage = hadoop_storage(files, "hdfs://nn/w")
    directory = f"{storage.staging.location('w')}/5a"
    for path in ("file=task-0-a.avro/part-00000-1.txt", "_temporary/0/file=task-0-b.avro/part-0.txt", "_SUCCESS"):
        files.write(f"{directory}/{path}", b"x")
    assert storage.staging.written_files(directory) == {"task-0-a.avro": "file=task-0-a.avro/part-00000-1.txt"}


def test_results_of_another_process_are_persisted_before_use() -> None:
    """The other process may have been killed before it got the reply, and the NameNode before it had persisted the
    change."""
    files = FakeHdfs()
    storage = hadoop_storage(files, "hdfs://nn/w")
    stage(storage)
    publish(storage)
    assert files.done == []
    publish(storage)
    assert files.done == [("persist", f"hdfs://nn/w/{NAME}")]
    files.done.clear()
    storage.commits.persist("log/1")
    storage.files.put(NAME, b"whole")
    storage.files.link_or_copy("t", "t/other.avro", NAME)
    assert files.done == [("persist", "hdfs://nn/w/_headrace/log/1"), *[("persist", f"hdfs://nn/w/{NAME}")] * 2]
    files.done.clear()
    stage(storage)
    publish(storage)
    staged = storage.staging.location("w") + "/a.avro"
    assert files.done[:2] == [("persist", f"hdfs://nn/w/{NAME}"), ("delete", staged)]


def test_put_all_replaces_each_file() -> None:
    storage = hadoop_storage(FakeHdfs(), "hdfs://nn/w")
    names = [f"t{number}/_schema/current.avsc" for number in range(20)]
    for content in (b"1", b"22"):
        storage.files.put_all({name: content + name.encode() for name in names})
        for name in names:
            with storage.files.open(name) as file:
                assert file.read() == content + name.encode()


def test_a_put_with_a_lost_reply_succeeds() -> None:
    """The client retries and its first attempt makes the second fail. The run id in the commit identifies the owner."""
    commits = CommitFiles(hadoop_storage(FakeBucket(drops_replies=True), "s3a://bucket/w").commits)
    assert commits.put(1, b"mine") == b"mine"
    assert commits.put(1, b"other") == b"mine"
