"""`headrace load` into a time partition through S3A: tables that Spark SQL reads, kills, a store that is slow or
deaf.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
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
    two_drivers,
)
from support.servers.s3_server import BUCKET, CHANGES, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.timeout(1800 + 60 * kills_of_test())]

PREFIX = "warehouse"
EXPIRED_ASKED_MAX = 10  # times in a load, which looks at the log and proves that it can write to it
LOST_EVERY = 6  # requests of a kind, so that what is tried again comes through
TRIES_OF_ONE_TOPIC_MAX = 24  # where S3A and the SDK try twice, for each of its files, which are published at once
SLOW_S = 8.0  # more than one try of S3A takes


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONFIG", str(server.settings_file(tmp_path_factory.mktemp("s3"))))
        yield server
    server.stop()


@pytest.fixture(scope="module")
def world(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    uri = f"s3a://{BUCKET}/{PREFIX}"
    world = RemoteWorld(tmp_path_factory.mktemp("load"), uri, lambda target: s3.fetch(PREFIX, target))
    yield world
    world.close()


def test_a_load_and_the_next_are_read_by_spark_sql(world: RemoteWorld) -> None:
    world.produce("orders", 40)
    world.load_well()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    world.produce("clicks", 10)
    world.load_well()
    assert world.counts("orders") == (60, 60)
    assert world.staged() == []


def test_killed_loads_leave_what_the_next_one_makes_whole(world: RemoteWorld, tmp_path: Path) -> None:
    kill_loads(world, tmp_path, kills_of_test())


def test_a_task_that_is_tried_again_leaves_its_files_once(world: RemoteWorld, tmp_path: Path) -> None:
    lose_a_worker(world, tmp_path)


def test_two_drivers_at_once_load_everything_once(world: RemoteWorld, tmp_path: Path) -> None:
    two_drivers(world, tmp_path)


def test_a_bucket_that_says_slow_down_makes_a_load_wait(world: RemoteWorld, s3: S3Server) -> None:
    """From its first file on, to everything, for a while."""
    before = world.staged_now()
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    ends_s = 0.0

    def fault(request: dict[str, Any]) -> str:
        nonlocal ends_s
        if not ends_s and request["REQUEST_METHOD"] == "PUT" and "/staging/" in request["PATH_INFO"]:
            ends_s = time.monotonic() + SLOW_S
        return "slow" if time.monotonic() < ends_s else ""

    with s3.inject_faults(fault):
        world.load_well()
    assert s3.fault_count > 1
    assert set(world.staged()) <= before


def test_a_bucket_that_stays_slow_is_one_line_and_nothing_is_lost(
    world: RemoteWorld, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer tries, since S3A doubles its wait twenty times."""
    few = {"hadoop.fs.s3a.retry.throttle.limit": "3", "hadoop.fs.s3a.attempts.maximum": "2"}
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    monkeypatch.setenv("HEADRACE_CONFIG", str(s3.settings_file(tmp_path, **few)))
    with s3.inject_faults(lambda request: "slow" if request["REQUEST_METHOD"] in CHANGES else ""):
        run = world.load()
    assert run.returncode == 2, run.stdout + run.stderr
    (line,) = run.stderr.splitlines()
    assert "503" in line, line
    world.load_well()


def test_credentials_that_have_expired_are_one_line_and_asked_with_a_few_times_only(
    world: RemoteWorld, s3: S3Server
) -> None:
    """With the tries that S3A has by itself: no time makes them good again."""
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    for methods, said in (
        (("HEAD", *CHANGES, "GET"), "usually the credentials have expired"),
        (CHANGES, "have expired; "),
    ):
        with s3.inject_faults(
            lambda request, refused=methods: "expired" if request["REQUEST_METHOD"] in refused else ""
        ):
            run = world.load()
            assert 0 < s3.fault_count <= EXPIRED_ASKED_MAX
        assert run.returncode == 2, run.stdout + run.stderr
        (line,) = run.stderr.splitlines()
        assert said in line, line
        assert "make the directory writable" not in line, "which is no cure for that"
    world.load_well()


def test_replies_that_get_lost_all_through_a_load_cost_no_row(world: RemoteWorld, s3: S3Server) -> None:
    """Of every kind of request: what it asked for is done, and asked for again."""
    before = world.staged_now()
    world.produce("orders", 30, fields=[*FIELDS, NOTE])
    asked: Counter[str] = Counter()

    def fault(request: dict[str, Any]) -> str:
        kind = request["REQUEST_METHOD"] + ("copy" if "HTTP_X_AMZ_COPY_SOURCE" in request else "")
        asked[kind] += 1
        return "lost" if asked[kind] % LOST_EVERY == 1 else ""

    with s3.inject_faults(fault):
        run = world.load()
    assert s3.fault_count > len(asked) > 3, asked
    assert "Traceback" not in run.stderr
    assert run.returncode in (0, 2), run.stdout + run.stderr
    assert len([line for line in run.stderr.splitlines() if " INFO " not in line]) == (run.returncode == 2)
    world.check(whole=False)
    world.load_well()
    total = len(world.produced["orders"].rows)
    assert world.counts("orders") == (total, total)
    assert set(world.staged()) <= before


def test_a_bucket_that_goes_away_while_files_are_published_is_waited_for_once(
    world: RemoteWorld, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what it is asked for, and answers nobody any more; with fewer tries than S3A has by itself."""
    few = {"hadoop.fs.s3a.retry.limit": "1", "hadoop.fs.s3a.attempts.maximum": "1"}
    for topic in ("clicks", "orders", "views"):
        world.produce(topic, 10)
    monkeypatch.setenv("HEADRACE_CONFIG", str(s3.settings_file(tmp_path, **few)))
    is_gone = False

    def fault(request: dict[str, Any]) -> str:
        nonlocal is_gone
        is_publication = "HTTP_X_AMZ_COPY_SOURCE" in request and "_headrace" not in request["PATH_INFO"]
        is_gone = is_gone or is_publication
        return "lost" if is_gone else ""

    with s3.inject_faults(fault):
        run = world.load()
    assert run.returncode == 1, run.stdout + run.stderr
    (problem,) = [line for line in run.stdout.splitlines() if line.startswith("PROBLEM")]
    assert "3 topics (clicks, orders, views): the storage cannot be used: " in problem
    assert "Traceback" not in run.stderr
    assert s3.fault_count <= TRIES_OF_ONE_TOPIC_MAX
    world.check(whole=False)
    world.load_well()


def test_a_bucket_without_conditional_puts_is_refused(world: RemoteWorld, s3: S3Server, tmp_path: Path) -> None:
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


def test_the_other_commands_read_and_change_it(world: RemoteWorld) -> None:
    """Last, since `check` does not look where compaction puts files."""
    read_and_change(world)
