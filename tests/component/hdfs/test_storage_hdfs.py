"""The storage contract on a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.loader.storage.protocols import Storage
from support.loader.real_storage import real_storage, spark_jvm
from support.loader.storage_contract import StorageContract
from support.servers.hdfs import Hdfs

pytestmark = [pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    hdfs = Hdfs(tmp_path_factory.mktemp("hdfs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
        with spark_jvm(tmp_path_factory.mktemp("data"), {}):
            yield hdfs
    hdfs.stop()


class TestHdfs(StorageContract):
    """The directory's name contains words of the NameNode's error messages, which must not be taken for an error."""

    ROUNDS = 20

    @pytest.fixture
    def storage(self, hdfs: Hdfs) -> Storage:
        return real_storage(f"{hdfs.uri}/team-412/SafeModeException/AccessControlException")


def test_sweep_deletes_temporary_files_of_killed_puts(hdfs: Hdfs) -> None:
    storage = real_storage(hdfs.uri)
    storage.commits.put_if_absent("tmp/left", b"x")
    storage.commits.delete_temporary_files(0, 1000)
    assert storage.commits.children("tmp") == ("left",)
    storage.commits.delete_temporary_files(4_000_000_000_000, 1000)
    assert storage.commits.children("tmp") == ()
