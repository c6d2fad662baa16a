"""Access control, TLS, metrics and the access log of a served registry with several workers."""

from __future__ import annotations

import base64
import gzip
import http.client
import io
import json
import logging
import os
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.cli import main
from headrace.cli.command import CommandError
from headrace.cli.registry_access import check_access, tls_of
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.settings import Address, RegistrySettings
from support.certificates import Authority
from support.registry.registry_calls import STRING, Registry

WORKERS = 2


def users_text() -> str:
    cost = Cost(log2_n=4, r=1, p=1)
    lines = [user_line(name, PasswordHash.of(name, name.encode(), cost)) for name in ("root", "team")]
    return "\n".join([*lines, "grant root admin *", "grant team write team-*", ""])


def basic(name: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{name}".encode()).decode()}


class Served:
    def __init__(self, directory: Path, url: str, pid: int) -> None:
        self.registry = Registry(url)
        self.pid = pid
        self.users = directory / "users"
        self.log = directory / "access.log"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start_module_service: Any) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("operation")
    (directory / "users").write_text(users_text())
    service = start_module_service(
        *("headrace", "registry", "serve", "--data-dir", str(directory), "--registry-listen", "127.0.0.1:0"),
        *("--workers", str(WORKERS), "--users", str(directory / "users")),
        environment={
            "HEADRACE__REGISTRY__ACCESS_LOG": str(directory / "access.log"),
            "HEADRACE__REGISTRY__ACCESS_CONTROL_ALLOW_ORIGIN": "https://ui.example.com, http://localhost:3000",
        },
    )
    found = Served(directory, service.addresses["registry"], service.process.pid)
    body = {"schema": STRING}
    assert found.registry.call("POST", "/subjects/team-a/versions", body, basic("root")).status == 200
    yield found


@pytest.mark.servers
def test_pages_of_listed_origins_may_call_the_registry(served: Served) -> None:
    origin = {"Origin": "http://localhost:3000"}
    preflight = served.registry.call("OPTIONS", "/config", headers=origin | {"Access-Control-Request-Method": "PUT"})
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, origin["Origin"])
    for headers, status in ((basic("root"), 200), ({}, 401)):
        response = served.registry.call("GET", "/config", headers=origin | headers)
        assert (response.status, response.headers["access-control-allow-origin"]) == (status, origin["Origin"])
    other = served.registry.call("GET", "/config", headers=basic("root") | {"Origin": "https://example.com"})
    assert (other.status, "access-control-allow-origin" in other.headers) == (200, False)


@pytest.mark.servers
def test_gzip_bodies_are_inflated_by_workers_and_their_checking_processes(served: Served) -> None:
    body = gzip.compress(json.dumps({"schema": STRING + " " * 200_000}).encode())
    bomb = gzip.compress(b" " * (16 << 20))
    headers = basic("root") | {"Content-Encoding": "gzip"}
    for path in ("/subjects/team-a", "/subjects/team-a/versions", "/compatibility/subjects/team-a/versions/latest"):
        assert served.registry.call("POST", path, body, headers).status == 200
        assert served.registry.call("POST", path, bomb, headers).error[1] in (413, 42209)
        assert served.registry.call("POST", path, body, headers | {"Content-Encoding": "br"}).error[0] == 415


@pytest.mark.servers
def test_cached_responses_are_served_to_authorized_users_only(served: Served) -> None:
    path = "/subjects/team-a/versions/latest"
    for _ in range(10):
        assert served.registry.call("GET", path, headers=basic("team")).status == 200
        assert served.registry.call("GET", path, headers=basic("root")).status == 200
        assert served.registry.call("GET", path).status == 401
        wrong = {"Authorization": "Basic " + base64.b64encode(b"root:wrong").decode()}
        assert served.registry.call("GET", path, headers=wrong).status == 401
        assert served.registry.call("GET", "/schemas/ids/1", headers=basic("team")).status == 200


@pytest.mark.servers
def test_cache_serves_users_with_permission_for_some_subjects(served: Served) -> None:
    """Also by id, although the response depends on which subjects use the schema."""
    path = "/schemas/ids/1"
    for _ in range(20):
        assert served.registry.call("GET", path, headers=basic("team")).status == 200
    deadline = time.monotonic() + 60
    cached = 0.0
    while not cached and time.monotonic() < deadline:
        cached = sum(
            sample.value
            for sample in samples(served)
            if sample.labels.get("route") == "/schemas/ids/{id}" and sample.labels.get("cached") == "true"
        )
    assert cached


@pytest.mark.servers
def test_unauthorized_request_is_rejected_before_its_body_and_keeps_its_connection(served: Served) -> None:
    body = b" " * 3_000_000
    connection = http.client.HTTPConnection(served.registry.host, served.registry.port, timeout=60)
    try:
        connection.putrequest("POST", "/subjects/team-a/versions")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        own = connection.sock
        refused = connection.getresponse()
        assert (refused.status, json.load(refused)["error_code"]) == (401, 40101)
        own.sendall(body)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        assert connection.sock is own
    finally:
        connection.close()


def samples(served: Served) -> list[Any]:
    page = served.registry.call("GET", "/metrics", headers=basic("root"))
    assert page.status == 200
    return [sample for family in text_string_to_metric_families(page.text) for sample in family.samples]


def requests_counted(served: Served) -> dict[tuple[str, str, str], int]:
    """Requests by method, route and status, cached or not."""
    found: dict[tuple[str, str, str], int] = {}
    for sample in samples(served):
        if sample.name == "headrace_registry_requests_total":
            key = (sample.labels["method"], sample.labels["route"], sample.labels["status"])
            found[key] = found.get(key, 0) + int(sample.value)
    return found


def workers_counted(served: Served) -> int:
    return sum(int(sample.value) for sample in samples(served) if sample.name == "headrace_registry_workers")


@pytest.mark.servers
def test_metrics_count_requests_of_all_workers(served: Served) -> None:
    deadline = time.monotonic() + 60
    while workers_counted(served) != WORKERS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers_counted(served) == WORKERS
    before = requests_counted(served)
    for _ in range(50):
        # Each call has its own connection, which any worker may accept.
        assert served.registry.call("GET", "/subjects/team-a/versions", headers=basic("root")).status == 200
    assert served.registry.call("GET", "/subjects/team-a/versions").status == 401
    route = "/subjects/{subject}/versions"
    deadline = time.monotonic() + 60
    rows: list[int] = []
    # A response is counted after it was sent, so the client may have it before it is counted.
    while rows != [50, 1] and time.monotonic() < deadline:
        after = requests_counted(served)
        rows = [after.get(key, 0) - before.get(key, 0) for key in (("GET", route, "200"), ("GET", route, "401"))]
    assert rows == [50, 1]


def workers_of(served: Served) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()}


@pytest.mark.servers
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_counts_survive_a_killed_worker(served: Served) -> None:
    before = requests_counted(served)
    workers = workers_of(served)
    os.kill(min(workers), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (not workers_of(served) - workers or len(workers_of(served)) < WORKERS) and time.monotonic() < deadline:
        time.sleep(0.05)
    # Whichever worker responds, and as soon as the new one counts.
    for _ in range(20):
        after = requests_counted(served)
        assert all(after[key] >= number for key, number in before.items())
    while workers_counted(served) != WORKERS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers_counted(served) == WORKERS


@pytest.mark.servers
def test_access_log_has_users_and_no_credentials(served: Served) -> None:
    served.registry.call("GET", "/subjects/team-a%2Fx?deleted=true", headers=basic("team"))
    deadline = time.monotonic() + 60
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < deadline:
        lines = [json.loads(line) for line in served.log.read_text().splitlines()]
        found = [line for line in lines if line["path"] == "/subjects/team-a%2Fx"]
    line = found[0]
    assert (line["user"], line["query"], line["status"]) == ("team", "deleted=true", 405)
    text = served.log.read_text()
    assert all(header not in text for name in ("root", "team") for header in basic(name).values())


@pytest.mark.servers
def test_removed_user_is_rejected_without_a_restart(served: Served) -> None:
    path = "/subjects/team-a/versions"
    assert served.registry.call("GET", path, headers=basic("team")).status == 200
    text = served.users.read_text()
    new = served.users.with_name("users.new")
    try:
        new.write_text("\n".join(line for line in text.splitlines() if "team" not in line))
        new.replace(served.users)
        deadline = time.monotonic() + 60
        # Every worker reads the file separately.
        unknown = 0
        while unknown < 20 and time.monotonic() < deadline:
            unknown = unknown + 1 if served.registry.call("GET", path, headers=basic("team")).status == 401 else 0
            time.sleep(0.05)
        assert unknown == 20
    finally:
        served.users.write_text(text)


def test_user_command_prints_a_line_for_the_users_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("wonder\n"))
    assert main(["registry", "user", "alice"]) == 0
    kind, name, text = capsys.readouterr().out.split()
    assert (kind, name) == ("user", "alice")
    assert PasswordHash.parse(text).matches("wonder")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["registry", "user", "alice"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.timeout(60)
def test_registry_without_users_does_not_listen_on_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "0.0.0.0:0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace: registry.listen is 0.0.0.0:0") and error.count("\n") == 1
    assert "--users" in error and "registry.allow_unauthenticated_from" in error


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"listen": Address("192.0.2.1", 0)}, r"registry\.listen.*192\.0\.2\.1:0"),
        ({"listen": Address("::", 0)}, r"registry\.listen"),
        ({"users": "/nonexistent/users"}, "/nonexistent/users.*No such file"),
        ({"access_log": "/nonexistent/log"}, r"registry\.access_log /nonexistent/log.*No such file"),
        ({"tls_certificate": "/nonexistent/pem"}, r"registry\.tls_certificate /nonexistent/pem"),
    ],
)
def test_invalid_settings_prevent_the_start(settings: dict[str, Any], named: str) -> None:
    invalid = RegistrySettings(**settings)
    with pytest.raises(CommandError, match=named):
        check_access(invalid)
        tls_of(invalid)


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": Address("127.0.0.1", 0)},
        {"listen": Address("::1", 0)},
        {"listen": Address("localhost", 0)},
        {"listen": Address("0.0.0.0", 0), "allow_unauthenticated_from": "network"},
    ],
)
def test_registry_without_users_may_listen_on_these_addresses(settings: dict[str, Any]) -> None:
    check_access(RegistrySettings(**settings))


def test_users_without_tls_cause_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "users").write_text(users_text())
    check_access(RegistrySettings(listen=Address("0.0.0.0", 0), users=str(tmp_path / "users")))
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "tls_certificate" in record.getMessage()


@pytest.mark.servers
def test_registry_serves_tls(tmp_path: Path, start_service: Any) -> None:
    authority = Authority(tmp_path / "pki")
    certificate, key = authority.certificate("server")
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    service = start_service(
        *("headrace", "registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"),
        environment={"HEADRACE__REGISTRY__TLS_CERTIFICATE": str(certificate)},
    )
    url = service.addresses["registry"]
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(authority.ca_file))
    with urllib.request.urlopen(f"{url}/subjects", context=trusting, timeout=60) as response:
        assert json.load(response) == []
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{url}/subjects", context=ssl.create_default_context(), timeout=60)


def served_certificate(port: int) -> bytes:
    """Empty if the worker that accepted the connection has ended."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain_socket,
            context.wrap_socket(plain_socket) as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""
    except OSError:
        return b""


def certificate_in(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.mark.servers
def test_renewed_certificate_is_served_after_sighup(tmp_path: Path, start_service: Any) -> None:
    authority = Authority(tmp_path / "pki")
    certificates = {name: authority.certificate(name) for name in ("first", "second")}
    links = [tmp_path / name for name in ("live.pem", "live.key")]

    def link_to(*targets: Path) -> None:
        for link, target in zip(links, targets, strict=True):
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    link_to(*certificates["first"])
    service = start_service(
        *("headrace", "registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"),
        environment={
            "HEADRACE__REGISTRY__TLS_CERTIFICATE": str(links[0]),
            "HEADRACE__REGISTRY__TLS_KEY": str(links[1]),
        },
    )
    port = int(service.addresses["registry"].rpartition(":")[2])
    deadline = time.monotonic() + 60
    # A key of another certificate is logged and changes nothing.
    link_to(certificates["second"][0], certificates["first"][1])
    service.process.send_signal(signal.SIGHUP)
    while (
        not any(" ERROR headrace.registry.api.server: " in line for line in service.errors)
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert served_certificate(port) == certificate_in(certificates["first"][0])
    link_to(*certificates["second"])
    service.process.send_signal(signal.SIGHUP)
    found = b""
    # Either worker may respond while both listen.
    while found != certificate_in(certificates["second"][0]) and time.monotonic() < deadline:
        found = served_certificate(port)
        time.sleep(0.05)
    assert found == certificate_in(certificates["second"][0])
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0


def test_encrypted_and_foreign_keys_are_rejected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("server", key_password="open sesame")
    with pytest.raises(CommandError, match=str(key)):
        tls_of(RegistrySettings(tls_certificate=str(certificate), tls_key=str(key)))
    other = authority.certificate("other")[1]
    with pytest.raises(CommandError, match=str(other)):
        tls_of(RegistrySettings(tls_certificate=str(certificate), tls_key=str(other)))
    tls = tls_of(
        RegistrySettings(tls_certificate=str(authority.certificate("third")[0]), tls_key=str(tmp_path / "third.key"))
    )
    assert tls is not None
    assert tls_of(RegistrySettings()) is None
