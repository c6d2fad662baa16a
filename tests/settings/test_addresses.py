from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from headrace.cli.command import add_settings_flags, configured_settings, settings_from
from headrace.settings import KafkaSettings, LoaderSettings, Settings, SettingsError, load_settings
from headrace.settings.addresses import (
    LiveAddresses,
    RemoteDirectory,
    live_addresses,
    local_warehouse_directory,
    resolve_bootstrap_servers,
    resolve_metastore,
    resolve_registry_url,
    state_location,
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


def test_unlocked_up_file_is_ignored(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    (tmp_path / "up.json").write_text(json.dumps(dataclasses.asdict(LIVE)))
    assert live_addresses(settings) is None
    assert resolve_registry_url(settings) == "http://127.0.0.1:8081"
    assert resolve_metastore(settings) is None


def test_registry_url_is_https_with_tls_certificate() -> None:
    settings = load_settings(flags={"registry.tls_certificate": "registry.pem"})
    assert resolve_registry_url(settings) == "https://127.0.0.1:8081"


def test_locked_up_file_overrides_defaults_but_not_settings(tmp_path: Path) -> None:
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
        os.ftruncate(descriptor, 0)  # a starting `up` holds the lock and has not written its addresses
        assert live_addresses(settings) is None
    finally:
        os.close(descriptor)


def test_command_uses_the_warehouse_of_a_running_up(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_settings_flags(parser, ("loader.warehouse",))
    arguments = ["--data-dir", str(tmp_path)]

    def warehouse(*more: str) -> Path | RemoteDirectory:
        return warehouse_location(settings_from(parser.parse_args([*arguments, *more]), {}))

    (tmp_path / "up.json").write_text(json.dumps(dataclasses.asdict(LIVE)))
    assert warehouse() == tmp_path / "warehouse", "no process has the file locked"
    descriptor = os.open(tmp_path / "up.json", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert warehouse() == Path(LIVE.warehouse)
        assert warehouse("--warehouse", str(tmp_path / "mine")) == tmp_path / "mine"
        assert configured_settings(parser.parse_args(arguments), {}).loader.warehouse == ""
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
        "hdfs://[x/a",
    ],
)
def test_unsupported_location_is_an_error_that_names_the_setting(text: str) -> None:
    for key in ("warehouse", "state"):
        settings = Settings(loader=LoaderSettings(**{key: text}))
        with pytest.raises(SettingsError, match=rf"loader\.{key}\b.*{re.escape(repr(text))}"):
            warehouse_location(settings) if key == "warehouse" else state_location(settings)


@pytest.mark.parametrize("text", ["hdfs://nn:8020/warehouse", "hdfs://nameservice/w/x", "s3a://bucket/x"])
def test_warehouse_and_state_accept_hdfs_and_s3a_uris(text: str, tmp_path: Path) -> None:
    settings = Settings(loader=LoaderSettings(warehouse=f"{text}/", state=str(tmp_path)))
    assert warehouse_location(settings) == RemoteDirectory(text)
    assert state_location(settings) == tmp_path
    assert state_location(Settings(loader=LoaderSettings(state=text))) == RemoteDirectory(text)
    assert state_location(Settings()) is None
    with pytest.raises(SettingsError, match=re.escape(text)):
        local_warehouse_directory(settings)


def test_warehouse_accepts_a_path_and_a_file_uri(tmp_path: Path) -> None:
    for text in (str(tmp_path / "a b"), (tmp_path / "a b").as_uri()):
        assert local_warehouse_directory(Settings(loader=LoaderSettings(warehouse=text))) == tmp_path / "a b"
    assert local_warehouse_directory(Settings(data_dir=tmp_path)) == tmp_path / "warehouse"
