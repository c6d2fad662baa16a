"""The settings of a HiveServer2, and what contradicts what in them."""

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


def test_a_server_is_reached_as_the_settings_say(tmp_path: Path) -> None:
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
def test_settings_that_contradict_each_other_are_refused_before_a_run(hive: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        SparkConnection(settings(**hive), STORAGE, io.StringIO())


@pytest.mark.parametrize("text", ["hive", "hive://", "hive://host", "hive://u:p@host:1", "hive://host:1/db", "jdbc:x"])
def test_other_executors_are_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match=r"hive\.executor\b.*spark, print"):
        load_settings(flags={"hive.executor": text})


def test_a_server_that_is_down_is_asked_once_and_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Not once for every topic: a wrong password would lock its account."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
        edge = SparkConnection(Settings(hive=HiveSettings(executor=f"hive://127.0.0.1:{port}")), STORAGE, io.StringIO())
        with pytest.raises(MetastoreUnavailable, match=f"hive://127.0.0.1:{port} .*Connection refused"):
            edge.executor()
        trial.listen()
        trial.setblocking(False)
        with pytest.raises(MetastoreUnavailable, match="Connection refused"), caplog.at_level(logging.ERROR):
            edge.executor()
        with pytest.raises(BlockingIOError):
            trial.accept()
    assert not caplog.records
    assert not edge.tables_are_open
