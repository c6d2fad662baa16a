"""Probes of metastores and of several servers, and the command in an empty directory."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.pipeline.status import probe
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.probe import Health, probe_metastore, probe_sql
from headrace.pipeline.up.up_file import UpFile
from headrace.settings import Settings
from headrace.settings.addresses import LiveAddresses
from support.registry.scripted_http import scripted_server

THRIFT_REPLY = b"\x80\x01\x00\x02"


@contextlib.contextmanager
def answering(response: bytes | None) -> Iterator[str]:
    """Yields the thrift URI of a server that sends `response` to a request and closes; None never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                if response is None:
                    done.wait(30)
                else:
                    connection.sendall(response)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"thrift://127.0.0.1:{listener.getsockname()[1]}"
        done.set()


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.3)


@pytest.mark.parametrize(
    ("response", "health"),
    [(THRIFT_REPLY, Health.UP), (b"\x04\x00\x00\x00", Health.UP), (b"", Health.FAILING), (None, Health.SILENT)],
)
def test_metastore_is_up_only_if_it_responds(response: bytes | None, health: Health) -> None:
    with answering(response) as uri:
        assert probe_metastore(uri).health == health


@pytest.mark.parametrize("uri", ["thrift://[x:9083", "thrift://127.0.0.1:99999", "thrift://127.0.0.1:1"])
def test_metastore_that_cannot_be_reached_is_down(uri: str) -> None:
    assert probe_metastore(uri).health == Health.DOWN


def test_one_of_two_metastores_that_is_down_degrades_them() -> None:
    with answering(THRIFT_REPLY) as uri:
        result = probe_metastore(f"{uri},thrift://127.0.0.1:1")
    assert result.health == Health.DEGRADED
    assert result.reason == "thrift://127.0.0.1:1: refuses connections"


@pytest.mark.parametrize("form", ["text", "json", "prometheus"])
def test_status_of_an_empty_directory_is_a_failure_and_leaves_no_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    closed = ("--registry-listen", "127.0.0.1:1", "--broker-listen", "127.0.0.1:1")
    assert main(["status", *closed, "--format", form]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "up" in capsys.readouterr().out


def test_up_of_one_part_needs_no_other(tmp_path: Path) -> None:
    """As `headrace up --only registry` on a host without brokers."""
    with scripted_server(lambda request: (200, {"status": "ok"})) as server, UpFile(tmp_path / "up.json") as up_file:
        up_file.publish(LiveAddresses(os.getpid(), "now", server.url, "", "", "", "", str(tmp_path / "w")))
        status = platform_status(Settings(data_dir=tmp_path))
    facts = {fact.name: fact.text for fact in status.facts}
    assert status.findings == ()
    assert facts["lag"] == "unknown: no broker is configured"
    assert "broker" not in facts


def test_sql_server_without_a_socket_is_named_once(tmp_path: Path) -> None:
    path = str(tmp_path / "sql.sock")
    result = probe_sql(LiveAddresses(1, "", "", "", "", "", path, ""))
    assert (result.address, result.health, result.reason) == (path, Health.DOWN, "No such file or directory")
