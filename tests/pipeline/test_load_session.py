"""Sessions of loads, with fake Spark sessions: what is opened once and what each load opens."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors import session as sessions
from headrace.hive_ddl.executors import spark
from headrace.loader.storage.local import local_storage
from headrace.pipeline import load_session
from headrace.pipeline.load import SparkConnection, compaction_delay_ms
from headrace.pipeline.load_session import LoadSession
from headrace.settings import Settings, load_settings

METASTORE = "thrift://127.0.0.1:9083"


class FakeSpark:
    """Records opened and closed sessions. `is_down`: the metastore is not available."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.opened_without_metastore: list[dict[str, str]] = []
        self.closed: list[Any] = []
        self.is_down = False
        self.jvm_code: int | None = None

    def session(self) -> Any:
        process = SimpleNamespace(poll=lambda: self.jvm_code)
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))

    def check_reachable(self, uri: str) -> None:
        if self.is_down:
            raise MetastoreUnavailable(uri, "down")

    def open(self, **arguments: Any) -> Any:
        self.check_reachable(arguments["metastore_uri"])
        self.opened.append(arguments)
        return self.session()

    def open_session_without_metastore(self, data_dir: Path, properties: dict[str, str]) -> Any:
        self.opened_without_metastore.append(properties)
        return self.session()


@pytest.fixture
def fake_spark(monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    fake_spark = FakeSpark()
    monkeypatch.setattr(sessions, "open_session", fake_spark.open)
    monkeypatch.setattr(sessions, "open_session_without_metastore", fake_spark.open_session_without_metastore)
    monkeypatch.setattr(sessions, "close_session", fake_spark.closed.append)
    monkeypatch.setattr(sessions, "check_metastore_reachable", fake_spark.check_reachable)
    monkeypatch.setattr(load_session, "prepare_environment", lambda settings: None)
    monkeypatch.setattr(spark, "SparkExecutor", lambda session: SimpleNamespace(session=session, close=lambda: None))
    return fake_spark


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"data_dir": str(tmp_path), "hive.metastore": METASTORE})


def connection_of(settings: Settings, session: LoadSession | None = None) -> SparkConnection:
    """Returns the connection of one load."""
    return SparkConnection(settings, local_storage(settings.data_dir), io.StringIO(), session)


def test_consecutive_loads_share_a_session(fake_spark: FakeSpark, settings: Settings) -> None:
    shared = LoadSession(outlives_load=True)
    executors = []
    for _ in range(3):
        connection = connection_of(settings, shared)
        assert not connection.tables_are_open, "this load has not used the metastore yet"
        executors.append(connection.executor())
        assert connection.executor() is executors[-1]
        assert connection.tables_are_open
        connection.close()
    assert len({id(one) for one in executors}) == 3, "each load connects to the metastore"
    assert (len(fake_spark.opened), fake_spark.closed, shared.use_count) == (1, [], 3)
    assert shared.is_alive
    shared.close()
    assert (len(fake_spark.closed), shared.is_open) == (1, False)


def test_single_load_closes_its_session(fake_spark: FakeSpark, settings: Settings) -> None:
    connection = connection_of(settings)
    connection.executor()
    connection.close()
    assert len(fake_spark.closed) == 1


def test_shared_session_reads_while_the_metastore_is_down(fake_spark: FakeSpark, settings: Settings) -> None:
    shared = LoadSession(outlives_load=True)
    first = connection_of(settings, shared)
    pool = first._task_session()
    first.close()
    fake_spark.is_down = True
    connection = connection_of(settings, shared)
    assert connection._task_session() is pool
    assert not connection.tables_are_open
    fake_spark.is_down = False
    with pytest.raises(MetastoreUnavailable):
        connection.executor()  # tried once per load
    assert fake_spark.opened_without_metastore == []
    connection_of(settings, shared).executor()
    assert len(fake_spark.opened) == 1


def test_executor_tries_an_unavailable_metastore_once_per_load(
    fake_spark: FakeSpark, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each topic would wait for its own connection."""
    sessions_tried = []

    def fail(session: Any) -> None:
        sessions_tried.append(session)
        raise MetastoreUnavailable(METASTORE, "down")

    monkeypatch.setattr(spark, "SparkExecutor", fail)
    connection = connection_of(settings)
    for _ in range(3):
        with pytest.raises(MetastoreUnavailable):
            connection.executor()
    assert len(sessions_tried) == 1
    assert connection._task_session() is sessions_tried[0], "reading works without the metastore"


@pytest.mark.parametrize(
    ("executor", "is_alive"), [("spark", False), ("hive://127.0.0.1:10000", True), ("print", True)]
)
def test_session_without_metastore_is_alive_unless_spark_changes_tables(
    fake_spark: FakeSpark, tmp_path: Path, executor: str, is_alive: bool
) -> None:
    flags = {"data_dir": str(tmp_path), "hive.metastore": METASTORE, "hive.executor": executor}
    shared = LoadSession(outlives_load=True)
    fake_spark.is_down = True
    connection = connection_of(load_settings(flags=flags), shared)
    assert connection._task_session() is connection._task_session()
    assert len(fake_spark.opened_without_metastore) == 1
    assert (shared.is_open, shared.is_alive, shared.use_count) == (True, is_alive, 2)


def test_session_is_not_alive_after_its_jvm_ended(fake_spark: FakeSpark, settings: Settings) -> None:
    shared = LoadSession(outlives_load=True)
    assert not shared.is_alive
    shared.with_metastore(settings)
    assert shared.is_alive
    fake_spark.jvm_code = -9
    shared.collect_garbage()  # a failed collection is not an error
    assert not shared.is_alive


@pytest.mark.parametrize(
    ("master", "outlives_load", "daemon"),
    [("local[2]", True, "headrace.pipeline.worker_daemon"), ("local[2]", False, None), ("yarn", True, None)],
)
def test_only_shared_sessions_get_the_worker_daemon(
    fake_spark: FakeSpark, settings: Settings, master: str, outlives_load: bool, daemon: str | None
) -> None:
    flags = {"data_dir": str(settings.data_dir), "hive.metastore": METASTORE, "spark.master": master}
    LoadSession(outlives_load=outlives_load).with_metastore(load_settings(flags=flags))
    extra = fake_spark.opened[0]["extra"]
    assert extra.get("python.daemon.module") == daemon
    assert ("ExitOnOutOfMemoryError" in extra.get("driver.extraJavaOptions", "")) is outlives_load
    assert "driver.memory" not in extra, "the default of Spark"


@pytest.mark.parametrize(
    ("executor", "directory", "is_compacted"),
    [("spark", "a b", True), ("hive://server:10000", "ab", True), ("hive://server:10000", "a b", False)],
)
def test_no_compaction_where_hiveserver2_cannot_move_a_partition(
    executor: str, directory: str, is_compacted: bool
) -> None:
    settings = load_settings(flags={"hive.executor": executor, "loader.warehouse": f"/data/{directory}"})
    assert (compaction_delay_ms(settings)("orders") is not None) is is_compacted
