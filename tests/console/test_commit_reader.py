"""Reads of the commit log whose state pages share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.console.commit_reader import CommitReader
from headrace.console.errors import RemoteCommitLog
from headrace.loader.commit.commit_files import CommitFiles, commit_path
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import StorageError
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.pipeline.status.collect import platform_status
from headrace.settings import KafkaSettings, LoaderSettings, Settings
from support.loader.loader_samples import committed_range, load, topic_commit


def settings_of(directory: Path) -> Settings:
    loader = LoaderSettings(warehouse=str(directory / "warehouse"))
    return Settings(data_dir=directory, loader=loader, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def commit_each(directory: Path, *topics: str) -> Path:
    """Commits one load of each topic; returns the directory of the commit log."""
    found = directory / "warehouse" / "_headrace"
    log = CommitLog(LocalCommitStorage(found))
    log.open()
    for topic in topics:
        change = topic_commit(committed_range(0, None, 0, 40), new=True, table=topic)
        assert log.try_commit(load(topic, {topic: change})).commit
    return found


def test_commit_is_parsed_once_for_all_reads_and_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_each(tmp_path, "orders", "clicks")
    reader, parsed = CommitReader(settings_of(tmp_path)), []
    parse = CommitLog._parse

    def counted(log: CommitLog, number: int, content: bytes) -> object:
        parsed.append(number)
        return parse(log, number, content)

    monkeypatch.setattr(CommitLog, "_parse", counted)
    for _ in range(2):
        assert set(reader.read(lambda log: log.state).topics) == {"orders", "clicks"}
    status = platform_status(settings_of(tmp_path), open_log=reader.opened)
    assert any("at commit 2" in fact.text for fact in status.facts)
    assert parsed == [1, 2]


def test_state_is_read_ahead_and_an_error_or_a_hanging_log_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_each(tmp_path, "orders")
    reader, release = CommitReader(settings_of(tmp_path)), threading.Event()
    reader.read_ahead(20)
    monkeypatch.setattr(CommitLog, "_parse", lambda *_: release.wait(20))
    assert set(reader.opened().state.topics) == {"orders"}
    CommitReader(settings_of(tmp_path)).read_ahead(0.01)
    release.set()
    CommitReader(Settings(data_dir=tmp_path, loader=LoaderSettings(warehouse="hdfs://names:8020/w"))).read_ahead(20)


def test_reads_have_logs_of_their_own_without_the_archives_of_others(tmp_path: Path) -> None:
    commit_each(tmp_path, "orders")
    reader = CommitReader(settings_of(tmp_path))
    one, other = reader.opened(), reader.opened()
    assert one is not other
    assert one.commits is not other.commits
    assert isinstance(other.commits, CommitFiles)
    commit_each(tmp_path, "clicks")
    assert set(reader.opened().state.topics) == {"orders", "clicks"}
    assert set(one.state.topics) == {"orders"}


def test_restored_older_log_is_read_at_once(tmp_path: Path) -> None:
    log = commit_each(tmp_path, "orders", "clicks")
    reader = CommitReader(settings_of(tmp_path))
    assert reader.opened().state.commit_number == 2
    (log / commit_path(2)).unlink()
    assert set(reader.opened().state.topics) == {"orders"}


@pytest.mark.parametrize("warehouse", ["", "hdfs://names:8020/w"])
def test_log_is_read_without_writing_or_fsyncing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warehouse: str
) -> None:
    log = commit_each(tmp_path, "orders")

    def persist(*_: object) -> None:
        raise AssertionError("the console fsynced a commit")

    monkeypatch.setattr(CommitFiles, "persist", persist)
    state = LoaderSettings(warehouse=warehouse, state=str(log)) if warehouse else settings_of(tmp_path).loader
    reader = CommitReader(Settings(data_dir=tmp_path, loader=state))
    assert set(reader.opened().state.topics) == {"orders"}


def test_log_of_another_warehouse_is_an_error(tmp_path: Path) -> None:
    commit_each(tmp_path, "orders")
    loader = LoaderSettings(warehouse=str(tmp_path / "warehouse"), state=str(tmp_path / "state"))
    with pytest.raises(StorageError, match=r"unset loader\.state"):
        CommitReader(Settings(data_dir=tmp_path, loader=loader)).opened()


def test_remote_log_is_not_read(tmp_path: Path) -> None:
    reader = CommitReader(Settings(data_dir=tmp_path, loader=LoaderSettings(warehouse="hdfs://names:8020/w")))
    with pytest.raises(RemoteCommitLog, match="only commands read it there"):
        reader.opened()
