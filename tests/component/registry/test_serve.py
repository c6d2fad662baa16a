"""The process `headrace registry serve`: start, failed start, stop, and kill."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.registry.api.listening import ReservedPort
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryUnavailable
from support.processes import kill_with_children
from support.registry.registry_calls import STRING, Registry

SERVE = ("headrace", "registry", "serve", "--registry-listen", "127.0.0.1:0", "--data-dir")
StartService = Callable[..., Any]


FailingCommand = Callable[..., str]


@pytest.fixture
def failing_command(capsys: pytest.CaptureFixture[str]) -> FailingCommand:
    """Runs a `headrace registry` command that must fail at once, and returns its error message."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["registry", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = [line for line in err.splitlines() if " INFO " not in line]
        return line

    return run


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.servers)])
def test_stop_is_clean_and_loses_nothing(start_service: StartService, tmp_path: Path, stop: int) -> None:
    service = start_service(*SERVE, str(tmp_path))
    registry = Registry(service.addresses["registry"])
    schema_id = registry.registered("kept", STRING)
    service.process.send_signal(stop)
    assert service.process.wait(60) == 0
    assert [line for line in service.errors if " INFO " not in line] == []
    restarted = Registry(start_service(*SERVE, str(tmp_path)).addresses["registry"])
    assert restarted.get(f"/schemas/ids/{schema_id}").json["schema"] == STRING


@pytest.mark.servers
def test_ctrl_c_for_all_processes_ends_cleanly(tmp_path: Path) -> None:
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", *SERVE, str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready registry=")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert [line for line in errors.splitlines() if " INFO " not in line] == []


@pytest.mark.timeout(60)
def test_port_in_use_is_reported(failing_command: FailingCommand, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = failing_command("serve", "--data-dir", str(tmp_path), "--registry-listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: Address already in use" in line


def test_address_is_reserved_for_one_registry() -> None:
    """As soon as the port is reserved, also before it is listened on and for processes that would share it."""
    reserved = ReservedPort("127.0.0.1", 0)
    assert reserved.url() == f"http://127.0.0.1:{reserved.port}"
    with pytest.raises(OSError) as failing_command:
        ReservedPort("127.0.0.1", reserved.port)
    assert failing_command.value.errno == errno.EADDRINUSE
    reserved.close()
    ReservedPort("127.0.0.1", reserved.port).close()


@pytest.mark.timeout(60)
def test_unusable_database_is_reported(failing_command: FailingCommand, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert str(tmp_path / "file" / "sub") in failing_command(*SERVE[2:], str(tmp_path / "file" / "sub"))
    (tmp_path / "registry.db").write_text("not a database, but long enough to be taken for one" * 100)
    assert "file is not a database" in failing_command(*SERVE[2:], str(tmp_path))
    line = failing_command(*SERVE[2:], str(tmp_path), "--database-url", "sqlite:////no/such/directory/registry.db")
    assert "unable to open database file" in line
    for url in ("sqlite://", "nonsense"):
        assert "registry.database_url" in failing_command(*SERVE[2:], str(tmp_path), "--database-url", url)


@pytest.mark.timeout(60)
def test_database_of_a_newer_version_is_reported(
    failing_command: FailingCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "registry.db"
    for _ in range(2):
        assert main(["registry", "db", "upgrade", "--data-dir", str(tmp_path)]) == 0
        assert str(database) in capsys.readouterr().out
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE registry_migrations SET serves_from = '9999'")
    connection.close()
    assert "migration 9999" in failing_command(*SERVE[2:], str(tmp_path))


@pytest.mark.servers
def test_registry_listens_on_its_address_only(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(*SERVE, str(tmp_path))
    port = int(service.addresses["registry"].rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert set(listening) == {f"0100007F:{port:04X}"}
    rows = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [row for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


@pytest.mark.fault
def test_killed_registry_leaves_a_consistent_database(start_service: StartService, tmp_path: Path) -> None:
    """After a kill at any time all acknowledged registrations exist, and the database is consistent."""
    acknowledged: dict[str, int] = {}
    for round_number in range(4):
        service = start_service(*SERVE, str(tmp_path))
        _register_until_killed(service, f"round{round_number}", acknowledged, after=10 * (round_number + 1))
    client = RegistryClient(start_service(*SERVE, str(tmp_path)).addresses["registry"])
    for name, schema_id in acknowledged.items():
        subject, _, _ = name.partition(".")
        assert client.schema_by_id(schema_id).text == _fixed(name)
        assert client.lookup(subject, _fixed(name)).schema_id == schema_id
    for subject in client.subjects():
        versions = client.versions(subject)
        assert versions == list(range(1, len(versions) + 1))
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        orphans = "SELECT count(*) FROM schemas WHERE row_key NOT IN (SELECT schema_key FROM versions)"
        assert connection.execute(orphans).fetchone() == (0,)
        empty = "SELECT count(*) FROM subjects WHERE id NOT IN (SELECT subject_id FROM versions)"
        assert connection.execute(empty).fetchone() == (0,)
    connection.close()


def _fixed(name: str) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{name}"}}'


def _register_until_killed(service: Any, subject: str, acknowledged: dict[str, int], after: int) -> None:
    has_enough = threading.Event()
    own: dict[str, int] = {}

    def register(thread: int) -> None:
        client = RegistryClient(service.addresses["registry"], timeout_s=10)
        for number in range(1000):
            name = f"{subject}.{thread}.{number}"
            try:
                own[name] = client.register(subject, _fixed(name)).schema_id
            except RegistryUnavailable:
                return
            if len(own) >= after:
                has_enough.set()

    threads = [threading.Thread(target=register, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    assert has_enough.wait(60)
    kill_with_children(service.process.pid)
    service.process.wait(60)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    acknowledged.update(own)


@pytest.mark.servers
def test_workers_end_with_a_killed_parent(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(*SERVE, str(tmp_path), "--workers", "2")
    workers = children(service.process.pid)
    assert len(workers) == 2
    service.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    with pytest.raises(RegistryUnavailable):
        RegistryClient(service.addresses["registry"], timeout_s=1).subjects()


@pytest.mark.servers
def test_killed_worker_is_replaced(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(*SERVE, str(tmp_path), "--workers", "2")
    registry = Registry(service.addresses["registry"])
    schema_id = registry.registered("kept", STRING)
    before = children(service.process.pid)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(children(service.process.pid)) == 2 and before[0] not in children(service.process.pid))
    for _ in range(20):
        assert RegistryClient(service.addresses["registry"]).schema_by_id(schema_id).text == STRING
    assert service.stop() == 0


@pytest.mark.servers
def test_stop_completes_requests_in_progress(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(*SERVE, str(tmp_path))
    registry = Registry(service.addresses["registry"])
    body = b'{"schema":"\\"string\\""}'
    with socket.create_connection((registry.host, registry.port), timeout=60) as connection:
        head = f"POST /subjects/late/versions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:5])
        wait_until(lambda: registry.get("/healthz").status == 200)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(registry))
        connection.sendall(body[5:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert service.process.wait(60) == 0
    restarted = Registry(start_service(*SERVE, str(tmp_path)).addresses["registry"])
    assert restarted.get("/subjects/late/versions").json == [1]


@pytest.mark.servers
def test_too_large_body_gets_an_error_response(start_service: StartService, tmp_path: Path) -> None:
    environment = {"HEADRACE__REGISTRY__REQUEST_BYTES_MAX": "1024"}
    service = start_service(*SERVE, str(tmp_path), environment=environment)
    registry = Registry(service.addresses["registry"])
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    for head, body in (
        (b"Content-Length: 5000000", b"x" * 5_000_000),
        (b"Transfer-Encoding: chunked", chunk * 80 + b"0\r\n\r\n"),
        (b"Content-Length: 5000000\r\nExpect: 100-continue", b""),
    ):
        for path, status in ((b"/subjects/a/versions", 422), (b"/subjects/a", 413)):
            with socket.create_connection((registry.host, registry.port), timeout=60) as connection:
                connection.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + body)
                assert connection.recv(65536).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.servers
def test_disconnected_clients_cause_no_error(start_service: StartService, tmp_path: Path) -> None:
    service = start_service(*SERVE, str(tmp_path))
    registry = Registry(service.addresses["registry"])
    for _ in range(50):
        with socket.create_connection((registry.host, registry.port), timeout=60) as connection:
            connection.sendall(b"POST /subjects/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert registry.get("/subjects").json == []
    assert service.stop() == 0
    assert [line for line in service.errors if " INFO " not in line] == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_refused(registry: Registry) -> bool:
    try:
        socket.create_connection((registry.host, registry.port), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
