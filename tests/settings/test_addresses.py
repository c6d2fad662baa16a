from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from headrace.settings import KafkaSettings, LoaderSettings, Settings, SettingsError, load_settings
from headrace.settings.addresses import (
    LiveAddresses,
    RemoteDirectory,
    live_addresses,
    resolve_bootstrap_servers,
    resolve_metastore,
    resolve_registry_url,
    state_directory,
    warehouse_dir,
    warehouse_location,
)

LIVE = LiveAddresses(
    pid=1,
    started_at="2026-01-01T00:00:00+00:00",
    registry="http://127.0.0.1:1",
    broker="127.0.0.1:2",
    metastore="thrift://127.0.0.1:3",
    sql="",
    sql_socket="/d/sql.sock",
    warehouse="/w",
)


def test_an_unlocked_file_is_stale(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    (tmp_path / "up.json").write_text(json.dumps(dataclasses.asdict(LIVE)))
    assert live_addresses(settings) is None
    assert resolve_registry_url(settings) == "http://127.0.0.1:8081"
    assert resolve_metastore(settings) is None


def test_a_registry_with_a_certificate_is_asked_over_https() -> None:
    settings = load_settings(flags={"registry.tls_certificate": "registry.pem"})
    assert resolve_registry_url(settings) == "https://127.0.0.1:8081"


def test_a_locked_file_wins_over_defaults_and_loses_to_settings(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    (tmp_path / "up.json").write_text(json.dumps(dataclasses.asdict(LIVE)))
    descriptor = os.open(tmp_path / "up.json", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert live_addresses(settings) == LIVE
        assert resolve_registry_url(settings) == LIVE.registry
        assert resolve_bootstrap_servers(settings) == LIVE.broker
        assert resolve_metastore(settings) == LIVE.metastore
        named = dataclasses.replace(settings, kafka=KafkaSettings(bootstrap_servers="kafka:9092"))
        assert resolve_bootstrap_servers(named) == "kafka:9092"
        os.ftruncate(descriptor, 0)  # starting up: locked, but not ready
        assert live_addresses(settings) is None
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/x",
        "abfs://x@y/z",
        "file://elsewhere/x",
        "s3a:///x",
        "s3a://bucket",
        "hdfs:///w",
        "hdfs://nn",
        "hdfs://n/a%20",
    ],
)
def test_other_file_systems_are_refused(text: str) -> None:
    for key in ("warehouse", "state"):
        settings = Settings(loader=LoaderSettings(**{key: text}))
        with pytest.raises(SettingsError, match=rf"loader\.{key}\b.*{re.escape(repr(text))}"):
            warehouse_location(settings) if key == "warehouse" else state_directory(settings)


@pytest.mark.parametrize("text", ["hdfs://nn:8020/warehouse", "hdfs://nameservice/w/x", "s3a://bucket/x"])
def test_warehouse_and_state_may_be_on_a_cluster_or_in_a_bucket(text: str, tmp_path: Path) -> None:
    settings = Settings(loader=LoaderSettings(warehouse=f"{text}/", state=str(tmp_path)))
    assert warehouse_location(settings) == RemoteDirectory(text)
    assert state_directory(settings) == tmp_path
    assert state_directory(Settings(loader=LoaderSettings(state=text))) == RemoteDirectory(text)
    assert state_directory(Settings()) is None
    with pytest.raises(SettingsError, match=re.escape(text)):
        warehouse_dir(settings)


def test_the_warehouse_may_be_a_path_or_a_file_uri(tmp_path: Path) -> None:
    for text in (str(tmp_path / "a b"), (tmp_path / "a b").as_uri()):
        assert warehouse_dir(Settings(loader=LoaderSettings(warehouse=text))) == tmp_path / "a b"
    assert warehouse_dir(Settings(data_dir=tmp_path)) == tmp_path / "warehouse"
