"""The client's reaction to each response of a gateway, and to a lost network."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.push.sender import GzipCompressor
from support.certificates import Authority
from support.push_client import config_table, eventually, running_client
from support.session_gateway import Failure, SessionGateway, session_gateway

CHUNKS = "/v1/sessions/"
OPEN = "/v1/sessions"
LINES = [f"line {number}".encode() for number in range(2000)]


@pytest.fixture
def gateway() -> Iterator[SessionGateway]:
    with session_gateway() as found:
        yield found
        assert not found.problems


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "app.log"
    path.write_bytes(b"".join(line + b"\n" for line in LINES))
    return path


@pytest.mark.parametrize(
    "failure",
    [
        Failure(0),
        Failure(0, after=True),
        Failure(200, {"status": "ok"}),
        Failure(400, {"message": "wrong checksum"}),
        Failure(401, {"error_code": 40101}),
        Failure(404, {"error_code": 40401, "message": "no topic"}),
        Failure(404, {"error_code": 40470}),
        Failure(404, {"error_code": 40470}, after=True),
        Failure(429, {}, {"Retry-After": "0.01"}),
        Failure(500, after=True),
        Failure(502),
        Failure(503, {}, {"Retry-After": "0.01"}),
    ],
    ids=lambda failure: f"{failure.status}{'-after' if failure.after else ''}",
)
@pytest.mark.parametrize("path", [OPEN, CHUNKS])
def test_each_line_arrives_once_through_a_failure(
    gateway: SessionGateway, log: Path, tmp_path: Path, failure: Failure, path: str
) -> None:
    gateway.fail(path, failure, failure)
    with running_client(config_table(gateway.url, tmp_path, chunk_bytes=1024), tmp_path):
        eventually(lambda: len(gateway.lines()) >= len(LINES))
    assert gateway.lines() == LINES


def test_later_session_stops_its_source_and_no_other(
    gateway: SessionGateway, log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.fail(CHUNKS, Failure(409, {"error_code": 40970, "host": "web-2", "opened_at": "2026-01-31T00:00:00Z"}))
    with running_client(config_table(gateway.url, tmp_path), tmp_path) as shared:
        eventually(lambda: any(state.stopped for state in shared.states()))
        requests = gateway.requests
        log.with_name("other.log").write_text("other\n")
        eventually(lambda: gateway.lines() == [b"other"])
        with log.open("a") as file:
            file.write("more\n")
        time.sleep(0.05)
        assert gateway.requests == requests + 2, "the stopped source sends nothing"
    assert "web-2" in caplog.text
    (stopped,) = [
        source
        for source in json.loads((tmp_path / "state" / "state.json").read_text())["sources"]
        if "stopped" in source
    ]
    assert "web-2" in stopped["stopped"]
    with running_client(config_table(gateway.url, tmp_path), tmp_path):  # an operator starts it again
        eventually(lambda: len(gateway.lines()) == len(LINES) + 2)


def test_openings_name_the_session_before(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    """So a delayed opening of this client does not end its session."""
    table = config_table(gateway.url, tmp_path)
    for number in range(3):
        gateway.fail("/v1/sessions", Failure(0, after=True), Failure(0, after=True))
        with running_client(table, tmp_path):
            eventually(lambda number=number: len(gateway.lines()) == len(LINES) + number)  # type: ignore[misc]
        if number == 1:
            (tmp_path / "state" / "state.json").unlink()
        with log.open("a") as file:
            file.write(f"more {number}\n")
    for source in gateway.sources.values():
        assert [opening["previous"] for opening in source.opened] == list(range(len(source.opened)))


def test_source_moves_to_the_gateway_that_has_it(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    with session_gateway() as other:
        moved = Failure(307, {}, {"Location": f"{other.url}/v1/sessions"})
        gateway.always = moved
        with running_client(config_table(gateway.url, tmp_path), tmp_path):
            eventually(lambda: len(other.lines()) == len(LINES))
        assert other.lines() == LINES
        assert gateway.lines() == []


def test_credentials_are_not_sent_to_a_gateway_without_tls(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "certificates")
    with session_gateway(authority.certificate("gateway")) as gateway, session_gateway() as other:
        gateway.always = Failure(307, {}, {"Location": f"{other.url}/v1/sessions"})
        with running_client(config_table(gateway.url, tmp_path, ca=str(authority.ca_file)), tmp_path):
            eventually(lambda: f"redirected to {other.url}, without TLS" in caplog.text)
            gateway.always = None
            eventually(lambda: gateway.lines() == LINES)
        assert other.requests == 0


def test_next_gateway_is_used_when_one_is_away(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    with running_client(config_table(["http://127.0.0.1:9", gateway.url], tmp_path), tmp_path):  # type: ignore[arg-type]
        eventually(lambda: gateway.lines() == LINES)


def test_closed_idle_connection_is_no_failure(
    gateway: SessionGateway, log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.closes_connections = True
    with running_client(config_table(gateway.url, tmp_path, chunk_bytes=1024, retry="60s", retry_max="60s"), tmp_path):
        eventually(lambda: gateway.lines() == LINES)
    assert "not sent" not in caplog.text


def test_chunk_that_is_too_large_is_halved(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    gateway.max_chunk_bytes = 9000
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: gateway.lines() == LINES)
    assert max(gateway.chunk_sizes) <= 9000


def test_rejected_records_are_in_the_rejects_file(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "app.json").write_text('{"n": 1}\n{"n": "bad"}\nno json\n{"n": 2}\n')
    gateway.reject_when = b"bad"
    with running_client(config_table(gateway.url, tmp_path, {"format": "json"}), tmp_path):
        eventually(lambda: len(gateway.lines()) == 2)
    assert [json.loads(line) for line in gateway.lines()] == [{"n": 1}, {"n": 2}]
    rejects = [json.loads(line) for line in (tmp_path / "state" / "rejects.jsonl").read_text().splitlines()]
    assert sorted((reject["seqno"], reject["value"]) for reject in rejects) == [(22, '{"n": "bad"}'), (30, "no json")]
    assert {reject["error_code"] for reject in rejects} == {42203}


def test_rejects_of_the_client_are_not_repeated_after_a_restart(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "app.json"
    path.write_text("no json\n")
    table = config_table(gateway.url, tmp_path, {"format": "json"})
    for expected in (1, 2):
        with running_client(table, tmp_path) as shared:
            eventually(lambda: sum(state.position for state in shared.states()) == path.stat().st_size)
        assert len((tmp_path / "state" / "rejects.jsonl").read_text().splitlines()) == expected
        with path.open("a") as file:
            file.write("neither\n")


def test_files_are_the_buffer_while_the_gateway_is_away(log: Path, tmp_path: Path) -> None:
    with session_gateway() as gateway:
        url = gateway.url
    with running_client(config_table(url, tmp_path, buffer_bytes=4096, chunk_bytes=1024), tmp_path) as shared:
        for at in range(50):
            log.with_name(f"other-{at}.log").write_bytes(log.read_bytes())
        time.sleep(0.3)
        assert sum(source.pending_bytes for source in shared.sources.values()) <= 4096 + 1024


def test_full_disk_of_the_state_stops_nothing_for_good(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "state.tmp").mkdir()  # the state file cannot be written
    with running_client(config_table(gateway.url, tmp_path), tmp_path) as shared:
        eventually(lambda: any(state.problem for state in shared.states()))
        assert gateway.lines() == [], "nothing is sent before the state has the source"
        (state / "state.tmp").rmdir()
        eventually(lambda: gateway.lines() == LINES)


def test_session_carries_host_file_format_and_log_type(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    table = config_table(gateway.url, tmp_path)
    del table["files"][0]["topic"]
    table["files"][0]["log_type"] = "nginx"
    with running_client(table, tmp_path):
        eventually(lambda: gateway.lines() == LINES)
    ((source_id, source),) = gateway.sources.items()
    assert source.opened[0] == {
        "log_type": "nginx",
        "source_id": source_id,
        "host": "web-1",
        "file": str(log),
        "format": "lines",
        "previous": 0,
    }
    assert source_id.startswith("h/")
    assert len(source_id.encode()) <= 256


def test_clean_stop_ends_the_sessions(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: gateway.lines() == LINES)
    assert gateway.sessions == {}


def test_file_names_that_are_not_text_are_sent_escaped(gateway: SessionGateway, tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    (directory / "a\nb.log").write_text("1\n")
    Path(os.fsdecode(bytes(directory) + b"/\xff.log")).write_text("2\n")
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: sorted(gateway.lines()) == [b"1", b"2"])
    names = {source.opened[0]["file"].rpartition("/")[2] for source in gateway.sources.values()}
    assert names == {"a\\x0ab.log", "\\udcff.log"}


def test_directory_that_cannot_be_listed_is_logged_once(
    gateway: SessionGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "logs"
    logs.symlink_to("logs")  # an error that root gets too, unlike that of a missing permission
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        for number in (1, 2):
            eventually(lambda number=number: caplog.text.count(f"cannot read {logs}: ") == number)  # type: ignore[misc]
            time.sleep(0.05)  # some scans
            logs.unlink()
            logs.mkdir()
            (logs / "app.log").write_text(f"{number}\n")
            eventually(lambda number=number: len(gateway.lines()) == number)  # type: ignore[misc]
            assert caplog.text.count("cannot read") == number
            logs.rename(tmp_path / f"old{number}")
            logs.symlink_to("logs")


def test_files_above_the_limit_of_open_files_wait_and_the_log_says_so(
    gateway: SessionGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(20):
        (logs / f"{number}.log").write_text("line\n")
    table = config_table(gateway.url, tmp_path, deleted_after="20ms", state="10ms")
    with running_client(table, tmp_path):
        eventually(lambda: len(gateway.lines()) == 16 and "16 files are open, others wait" in caplog.text)
        for name in gateway.by_file():
            (logs / name).unlink()
        eventually(lambda: len(gateway.lines()) == 20)
    assert caplog.text.count("others wait") == 1


def test_pipes_and_directories_are_not_opened(gateway: SessionGateway, log: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "logs" / "pipe")
    (tmp_path / "logs" / "directory").mkdir()
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: gateway.lines() == LINES)


def test_partial_last_line_waits_or_is_sent_if_asked(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "app.log"
    path.write_text("a\nhalf")
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: gateway.lines() == [b"a"])
        time.sleep(0.1)
        assert gateway.lines() == [b"a"]
    with running_client(config_table(gateway.url, tmp_path, partial_after="20ms"), tmp_path):
        eventually(lambda: gateway.lines() == [b"a", b"half"])
        with path.open("a") as file:
            file.write("\nb\n")
        eventually(lambda: gateway.lines() == [b"a", b"half", b"b"])


def test_last_line_of_a_deleted_file_is_sent_without_line_end(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "app.log"
    path.write_text("a\nlast")
    with running_client(config_table(gateway.url, tmp_path, deleted_after="50ms"), tmp_path) as shared:
        eventually(lambda: gateway.lines() == [b"a"])
        path.unlink()
        eventually(lambda: gateway.lines() == [b"a", b"last"])
        eventually(lambda: not shared.sources)


def test_records_of_several_lines_arrive_whole(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "app.log"
    path.write_text("E 1\n at\n at\nE 2\n at\n")
    with running_client(config_table(gateway.url, tmp_path, {"start_pattern": "E "}), tmp_path):
        eventually(lambda: gateway.lines() == [b"E 1\n at\n at", b"E 2\n at"])


def test_long_line_arrives_in_parts(gateway: SessionGateway, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "app.log").write_text("x" * 2500 + "\nshort\n")
    table = config_table(gateway.url, tmp_path, chunk_bytes=512, line_bytes_max=1000)
    with running_client(table, tmp_path):
        eventually(lambda: len(gateway.lines()) == 4)
    (source,) = gateway.sources.values()
    assert [part for _, _, part in source.records] == ["1/3", "2/3", "3/3", ""]
    assert b"".join(gateway.lines()) == b"x" * 2500 + b"short"


def test_damaged_compressed_file_stops_no_other(
    gateway: SessionGateway, log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.with_name("old.log.1.gz").write_bytes(gzip.compress(b"x" * 10_000)[:20] + b"damage" * 50)
    with running_client(config_table(gateway.url, tmp_path), tmp_path):
        eventually(lambda: gateway.lines() == LINES)
        eventually(lambda: "old.log.1.gz" in caplog.text)


def test_compressed_bodies_are_independent_gzip_streams() -> None:
    compressor = GzipCompressor()
    noise = random.Random(7).randbytes(1000)
    for body in (b"line\n" * 1000, noise, noise, b"\n", b"line\n" * 100_000):
        assert gzip.decompress(compressor.compressed(memoryview(body), zlib.crc32(body))) == body
