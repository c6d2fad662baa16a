"""The storage contract in a bucket, through S3A."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.loader.errors import NoPutIfAbsent
from headrace.loader.storage.protocols import Storage
from support.loader.real_storage import real_storage, spark_jvm
from support.loader.storage_contract import StorageContract
from support.servers.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server()
    with spark_jvm(tmp_path_factory.mktemp("data"), server.spark(tmp_path_factory.mktemp("s3"))):
        yield server
    server.stop()


class TestS3a(StorageContract):
    """The key's prefix contains words of the store's error messages, which must not be taken for an error."""

    ROUNDS = 20

    @pytest.fixture
    def storage(self, s3: S3Server) -> Storage:
        return real_storage(f"s3a://{BUCKET}/http-412/AccessDenied/slow-503")


def test_bucket_that_accepts_a_second_put_is_rejected(s3: S3Server) -> None:
    s3.is_conditional = False
    try:
        with pytest.raises(NoPutIfAbsent, match="a test could create the same file twice"):
            real_storage(f"s3a://{BUCKET}").commits.prepare()
    finally:
        s3.is_conditional = True


def test_put_with_lost_response_is_rejected_and_its_content_stored(s3: S3Server) -> None:
    storage = real_storage(f"s3a://{BUCKET}")
    lost = iter(["lost"])
    with s3.inject_faults(lambda request: next(lost, "") if "/log/" in request["PATH_INFO"] else ""):
        assert not storage.commits.put_if_absent("log/1", b"mine")
    assert s3.fault_count == 1
    assert storage.commits.read("log/1") == b"mine"


def test_file_replaced_during_a_read_is_read_again(s3: S3Server) -> None:
    commits = real_storage(f"s3a://{BUCKET}").commits
    commits.replace("index", b"old")
    (key,) = (key for key in s3.keys("") if key.endswith("/index"))
    newer = iter([b"newer", b"newest"])

    def replace(request: dict[str, Any]) -> str:
        is_reading = request["REQUEST_METHOD"] == "GET" and request["PATH_INFO"] == f"/{BUCKET}/{key}"
        if is_reading and (content := next(newer, b"")):
            s3.client.put_object(Bucket=BUCKET, Key=key, Body=content)
        return ""

    with s3.inject_faults(replace):
        assert commits.read("index") == b"newest"
