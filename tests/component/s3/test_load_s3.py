"""`headrace load` into a bucket through S3A: Spark SQL reads the tables; processes are killed; the store is slow or
unresponsive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.loader.load_world import FIELDS, NOTE
from support.loader.remote_world import (
    RemoteWorld,
    kill_loads,
    kills_of_test,
    lose_a_worker,
    read_and_change,
    recount_without_a_file,
    two_drivers,
)
from support.servers.s3_server import BUCKET, CHANGES, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(1800 + 60 * kills_of_test())]

PREFIX = "warehouse"
EXPIRED_REQUESTS_MAX = 10  # of a load, which reads the log and then checks that it can write
LOST_EVERY = 6  # one of so many requests of a kind is lost, so that its retry succeeds
LOST_RESPONSES_MAX = 24  # of one topic: its files are published in parallel, and S3A and the SDK each try twice
SLOW_DOWN_S = 8.0  # longer than one attempt of S3A


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONFIG", str(server.settings_file(tmp_path_factory.mktemp("s3"))))
        yield server
    server.stop()


@pytest.fixture(scope="module")
def world(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    with closing(open_world(s3, tmp_path_factory.mktemp("load"), PREFIX)) as world:
        yield world


def open_world(s3: S3Server, directory: Path, prefix: str) -> RemoteWorld:
    return RemoteWorld(directory, f"s3a://{BUCKET}/{prefix}", lambda target: s3.fetch(prefix, target))


def test_spark_sql_reads_tables_of_successive_loads(world: RemoteWorld) -> None:
    before = world.staged_at_start()
    world.produce("orders", 40)
    world.load_completely()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    world.produce("clicks", 10)
    world.load_completely()
    rows = len(world.produced["orders"].rows)
    assert world.counts("orders") == (rows, rows)
    assert set(world.staged()) <= before


def test_load_after_killed_loads_completes_their_work(world: RemoteWorld, tmp_path: Path) -> None:
    kill_loads(world, tmp_path, kills_of_test())


def test_retried_task_commits_its_files_once(world: RemoteWorld, tmp_path: Path) -> None:
    lose_a_worker(world, tmp_path)


def test_concurrent_drivers_load_each_message_once(world: RemoteWorld, tmp_path: Path) -> None:
    two_drivers(world, tmp_path)


def test_load_waits_while_bucket_responds_slow_down(world: RemoteWorld, s3: S3Server) -> None:
    """All requests fail for a while, from the load's first staged file on."""
    before = world.staged_at_start()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    ends_s = 0.0

    def fault(request: dict[str, Any]) -> str:
        nonlocal ends_s
        if not ends_s and request["REQUEST_METHOD"] == "PUT" and "/staging/" in request["PATH_INFO"]:
            ends_s = time.monotonic() + SLOW_DOWN_S
        return "slow" if time.monotonic() < ends_s else ""

    with s3.inject_faults(fault):
        world.load_completely()
    assert s3.fault_count > 1
    assert set(world.staged()) <= before


def test_bucket_that_stays_slow_is_one_error_line_and_loses_no_row(
    world: RemoteWorld, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reduces S3A's retries, because S3A doubles its wait up to twenty times."""
    fewer_retries = {"hadoop.fs.s3a.retry.throttle.limit": "3", "hadoop.fs.s3a.attempts.maximum": "2"}
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    monkeypatch.setenv("HEADRACE_CONFIG", str(s3.settings_file(tmp_path, **fewer_retries)))
    with s3.inject_faults(lambda request: "slow" if request["REQUEST_METHOD"] in CHANGES else ""):
        run = world.load()
    assert run.returncode == 2, run.stdout + run.stderr
    (line,) = run.stderr.splitlines()
    assert "503" in line, line
    world.load_completely()


def test_expired_credentials_are_one_error_line_after_few_requests(world: RemoteWorld, s3: S3Server) -> None:
    """Uses S3A's default retries: waiting does not help against expired credentials, so there must be few requests."""
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    for methods, expected in (
        (("HEAD", *CHANGES, "GET"), "usually the credentials have expired"),
        (CHANGES, "have expired; "),
    ):
        with s3.inject_faults(
            lambda request, refused=methods: "expired" if request["REQUEST_METHOD"] in refused else ""
        ):
            run = world.load()
            assert 0 < s3.fault_count <= EXPIRED_REQUESTS_MAX
        assert run.returncode == 2, run.stdout + run.stderr
        (line,) = run.stderr.splitlines()
        assert expected in line, line
        assert "make the directory writable" not in line, "that would not help against expired credentials"
    world.load_completely()


def test_lost_responses_during_a_load_lose_no_row(world: RemoteWorld, s3: S3Server) -> None:
    """Responses of every kind of request are lost: the operation is done, and the client repeats it."""
    before = world.staged_at_start()
    world.produce("orders", 30, fields=[*FIELDS, NOTE])
    requests: Counter[str] = Counter()

    def fault(request: dict[str, Any]) -> str:
        kind = request["REQUEST_METHOD"] + ("copy" if "HTTP_X_AMZ_COPY_SOURCE" in request else "")
        requests[kind] += 1
        return "lost" if requests[kind] % LOST_EVERY == 1 else ""

    with s3.inject_faults(fault):
        run = world.load()
    assert s3.fault_count > len(requests) > 3, requests
    assert "Traceback" not in run.stderr
    assert run.returncode in (0, 2), run.stdout + run.stderr
    assert len([line for line in run.stderr.splitlines() if " INFO " not in line]) == (run.returncode == 2)
    world.check(whole=False)
    world.load_completely()
    total = len(world.produced["orders"].rows)
    assert world.counts("orders") == (total, total)
    assert set(world.staged()) <= before


def test_bucket_lost_while_publishing_is_retried_for_one_topic_only(
    world: RemoteWorld, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All operations are done, but no response arrives any more. S3A has fewer retries than by default."""
    fewer_retries = {"hadoop.fs.s3a.retry.limit": "1", "hadoop.fs.s3a.attempts.maximum": "1"}
    for topic in ("clicks", "orders", "views"):
        world.produce(topic, 10)
    monkeypatch.setenv("HEADRACE_CONFIG", str(s3.settings_file(tmp_path, **fewer_retries)))
    is_unresponsive = False

    def fault(request: dict[str, Any]) -> str:
        nonlocal is_unresponsive
        is_publication = "HTTP_X_AMZ_COPY_SOURCE" in request and "_headrace" not in request["PATH_INFO"]
        is_unresponsive = is_unresponsive or is_publication
        return "lost" if is_unresponsive else ""

    with s3.inject_faults(fault):
        run = world.load()
    assert run.returncode == 1, run.stdout + run.stderr
    (problem,) = [line for line in run.stdout.splitlines() if line.startswith("PROBLEM")]
    assert "3 topics (clicks, orders, views): the storage cannot be used: " in problem
    assert "Traceback" not in run.stderr
    assert s3.fault_count <= LOST_RESPONSES_MAX
    world.check(whole=False)
    world.load_completely()


def test_bucket_without_conditional_puts_is_rejected(world: RemoteWorld, s3: S3Server, tmp_path: Path) -> None:
    s3.is_conditional = False
    try:
        flags = world.flags("--warehouse", f"s3a://{BUCKET}/elsewhere", "--new-warehouse")
        run = world.command("load", *flags)
        assert run.returncode == 2, run.stdout + run.stderr
        (line,) = run.stderr.splitlines()
        assert f"the commit log cannot be in s3a://{BUCKET}/elsewhere/_headrace" in line
        assert "set loader.state" in line
        assert [key for key in s3.keys("elsewhere") if not key.endswith("/")] == []
    finally:
        s3.is_conditional = True


def test_other_commands_read_and_change_the_warehouse(s3: S3Server, tmp_path: Path) -> None:
    """Has a warehouse of its own, because `check` does not find the files of a compaction."""
    with closing(open_world(s3, tmp_path, f"compacted-{PREFIX}")) as world:
        read_and_change(world)


def test_recount_names_a_missing_file(s3: S3Server, tmp_path: Path) -> None:
    with closing(open_world(s3, tmp_path, "recounted")) as world:
        recount_without_a_file(world, lambda path: s3.client.delete_object(Bucket=BUCKET, Key=f"recounted/{path}"))
