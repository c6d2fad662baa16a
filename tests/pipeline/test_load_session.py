"""The Spark of loads, with sessions of paper: what is opened once and what each load does anew."""

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
from headrace.pipeline.load import SparkConnection
from headrace.pipeline.load_session import LoadSession
from headrace.settings import Settings, load_settings

METASTORE = "thrift://127.0.0.1:9083"


class Paper:
    """What is opened and closed; `is_down` says whether the metastore answers."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.unreached: list[dict[str, str]] = []
        self.closed: list[Any] = []
        self.is_down = False
        self.jvm_code: int | None = None

    def session(self) -> Any:
        process = SimpleNamespace(poll=lambda: self.jvm_code)
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))

    def reach(self, uri: str) -> None:
        if self.is_down:
            raise MetastoreUnavailable(uri, "down")

    def open(self, **arguments: Any) -> Any:
        self.reach(arguments["metastore_uri"])
        self.opened.append(arguments)
        return self.session()

    def open_session_without_metastore(self, data_dir: Path, properties: dict[str, str]) -> Any:
        self.unreached.append(properties)
        return self.session()


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    paper = Paper()
    monkeypatch.setattr(sessions, "open_session", paper.open)
    monkeypatch.setattr(sessions, "open_session_without_metastore", paper.open_session_without_metastore)
    monkeypatch.setattr(sessions, "close_session", paper.closed.append)
    monkeypatch.setattr(sessions, "check_metastore_reachable", paper.reach)
    monkeypatch.setattr(load_session, "prepare_environment", lambda settings: None)
    monkeypatch.setattr(spark, "SparkExecutor", lambda session: SimpleNamespace(session=session, close=lambda: None))
    return paper


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"data_dir": str(tmp_path), "hive.metastore": METASTORE})


def edge_of(settings: Settings, session: LoadSession | None = None) -> SparkConnection:
    """Of one load."""
    return SparkConnection(settings, local_storage(settings.data_dir), io.StringIO(), session)


def test_loads_with_one_session_open_it_once(paper: Paper, settings: Settings) -> None:
    kept = LoadSession(outlives_load=True)
    executors = []
    for _ in range(3):
        edge = edge_of(settings, kept)
        assert not edge.tables_are_open, "this load has not asked the metastore yet"
        executors.append(edge.executor())
        assert edge.executor() is executors[-1]
        assert edge.tables_are_open
        edge.close()
    assert len({id(one) for one in executors}) == 3, "a connection to the metastore is of one load"
    assert (len(paper.opened), paper.closed, kept.metastore_uses) == (1, [], 3)
    assert kept.is_alive
    kept.close()
    assert (len(paper.closed), kept.is_open) == (1, False)


def test_a_load_by_itself_ends_its_session(paper: Paper, settings: Settings) -> None:
    edge = edge_of(settings)
    edge.executor()
    edge.close()
    assert len(paper.closed) == 1


def test_a_kept_session_reads_on_while_the_metastore_is_down(paper: Paper, settings: Settings) -> None:
    kept = LoadSession(outlives_load=True)
    first = edge_of(settings, kept)
    pool = first._pool()
    first.close()
    paper.is_down = True
    edge = edge_of(settings, kept)
    assert edge._pool() is pool
    assert not edge.tables_are_open
    paper.is_down = False
    with pytest.raises(MetastoreUnavailable):
        edge.executor()  # once in a load is enough
    assert kept.metastore_uses == 1
    assert paper.unreached == []
    edge_of(settings, kept).executor()
    assert len(paper.opened) == 1


def test_a_metastore_that_goes_before_it_is_asked_anything_is_asked_once(
    paper: Paper, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session was opened on it; each topic would wait for a connection of its own."""
    tried = []

    def gone(session: Any) -> None:
        tried.append(session)
        raise MetastoreUnavailable(METASTORE, "down")

    monkeypatch.setattr(spark, "SparkExecutor", gone)
    edge = edge_of(settings)
    for _ in range(3):
        with pytest.raises(MetastoreUnavailable):
            edge.executor()
    assert len(tried) == 1
    assert edge._pool() is tried[0], "what is read is read all the same"


def test_a_session_that_never_had_its_metastore_is_for_one_load(paper: Paper, settings: Settings) -> None:
    kept = LoadSession(outlives_load=True)
    paper.is_down = True
    edge = edge_of(settings, kept)
    assert edge._pool() is edge._pool()
    assert len(paper.unreached) == 1
    assert (kept.is_open, kept.is_alive) == (True, False)


def test_the_end_of_its_jvm_is_the_end_of_a_session(paper: Paper, settings: Settings) -> None:
    kept = LoadSession(outlives_load=True)
    assert not kept.is_alive
    kept.with_metastore(settings)
    assert kept.is_alive
    paper.jvm_code = -9
    kept.tidy()  # what a load left has gone with it
    assert not kept.is_alive


@pytest.mark.parametrize(
    ("master", "outlives_load", "daemon"),
    [("local[2]", True, "headrace.pipeline.worker_daemon"), ("local[2]", False, None), ("yarn", True, None)],
)
def test_only_what_is_kept_is_prepared_for_the_next_load(
    paper: Paper, settings: Settings, master: str, outlives_load: bool, daemon: str | None
) -> None:
    flags = {"data_dir": str(settings.data_dir), "hive.metastore": METASTORE, "spark.master": master}
    LoadSession(outlives_load=outlives_load).with_metastore(load_settings(flags=flags))
    extra = paper.opened[0]["extra"]
    assert extra.get("python.daemon.module") == daemon
    assert ("ExitOnOutOfMemoryError" in extra.get("driver.extraJavaOptions", "")) is outlives_load
    assert "driver.memory" not in extra, "Spark's own default, unless the settings say otherwise"
