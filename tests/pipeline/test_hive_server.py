"""The settings of a HiveServer2: contradictions, and an unavailable server."""

from __future__ import annotations

import io
import logging
import socket
from pathlib import Path

import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors.hiveserver import HiveServerAddress
from headrace.loader.storage.local import local_storage
from headrace.pipeline.hive_server import hive_server_address
from headrace.pipeline.load import SparkConnection
from headrace.settings import HiveSettings, Settings, SettingsError, load_settings

STORAGE = local_storage(Path("/nowhere"))


def settings(**hive: str) -> Settings:
    return Settings(hive=HiveSettings(executor="hive://hs2.example.org:10000", **hive))


def test_address_has_the_configured_credentials(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("geheim\n")
    assert hive_server_address(settings()) == HiveServerAddress("hs2.example.org", 10000, "NONE")
    found = hive_server_address(settings(server_auth="LDAP", server_user="u", server_password_file=str(secret)))
    assert found == HiveServerAddress("hs2.example.org", 10000, "LDAP", "u", "geheim")
    assert "geheim" not in repr(found)
    assert str(found) == "hive://hs2.example.org:10000"
    kerberos = hive_server_address(settings(server_auth="KERBEROS", server_kerberos_service="hive2"))
    assert (kerberos.auth, kerberos.service) == ("KERBEROS", "hive2")


@pytest.mark.parametrize(
    ("hive", "named"),
    [
        ({"server_password": "p"}, r"hive\.server_password\b.*hive\.server_auth LDAP"),
        ({"server_auth": "LDAP", "server_user": "u"}, r"hive\.server_user\b.*hive\.server_password_file"),
        ({"server_auth": "CUSTOM", "server_password": "p"}, r"hive\.server_user\b.*hive\.server_password_file"),
        (
            {"server_auth": "LDAP", "server_user": "u", "server_password": "p", "server_password_file": "f"},
            r"hive\.server_password\b.*hive\.server_password_file",
        ),
        ({"server_auth": "LDAP", "server_user": "u", "server_password_file": "/none"}, "/none: No such file"),
        ({"server_auth": "LDAP", "server_user": "u", "server_password_file": "/dev/null"}, "/dev/null"),
        ({"server_auth": "KERBEROS", "server_user": "u"}, r"hive\.server_user\b"),
    ],
)
def test_contradicting_settings_raise_before_a_run(hive: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        SparkConnection(settings(**hive), STORAGE, io.StringIO())


@pytest.mark.parametrize(
    "text",
    [
        "hive",
        "hive://",
        "hive://host",
        "hive://u:p@host:1",
        "hive://host:1/db",
        "jdbc:x",
        "hive://[host:1",
        "hive://host?:1",
        "hive://host:0",
        "hive://host:65536",
    ],
)
def test_unknown_executors_are_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"hive\.executor\b.*spark, print"):
        load_settings(flags={"hive.executor": text})


def test_unavailable_server_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    """A retry for each topic with a wrong password would lock the account."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        connection = SparkConnection(
            Settings(hive=HiveSettings(executor=f"hive://127.0.0.1:{port}")), STORAGE, io.StringIO()
        )
        with pytest.raises(MetastoreUnavailable, match=f"hive://127.0.0.1:{port} .*Connection refused"):
            connection.executor()
        probe.listen()
        probe.setblocking(False)
        with pytest.raises(MetastoreUnavailable, match="Connection refused"), caplog.at_level(logging.ERROR):
            connection.executor()
        with pytest.raises(BlockingIOError):
            probe.accept()
        assert connection.is_open_without_wait
        with pytest.raises(MetastoreUnavailable, match="Connection refused"):
            connection.open_tables()
        with pytest.raises(BlockingIOError):
            probe.accept()
    assert not caplog.records
    assert not connection.tables_are_open
