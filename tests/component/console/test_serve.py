"""`headrace console serve` as a process."""

from __future__ import annotations

import http.client
import os
import signal
import sqlite3
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from support.certificates import Authority
from support.console import PASSWORD, SAME_ORIGIN, user_line
from support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.servers

SERVE = ("headrace", "console", "serve", "--console-listen", "127.0.0.1:0", "--data-dir")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def worker_of(parent: int) -> int:
    """Returns the process that handles requests."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


def test_console_without_any_other_server_states_what_is_missing(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    service = start_service(*SERVE, str(tmp_path / "new"))
    url = service.addresses["console"]
    status, text = get(f"{url}/")
    assert status == 200
    assert "not running" in text
    assert get(f"{url}/nothing-here")[0] == 404
    assert service.stop() == 0


def test_console_loads_no_library_that_its_pages_do_not_use(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    """Its memory is 120 MB: these take 4 to 15 MB each."""
    service = start_service(*SERVE, str(tmp_path))
    for path in ("/", "/loads", "/quarantine", "/tables", "/find", "/messages?topic=orders", "/alerts", "/system"):
        assert get(service.addresses["console"] + path)[0] == 200
    parent = service.process.pid
    for process in (parent, worker_of(parent)):
        mapped = Path(f"/proc/{process}/maps").read_text()
        assert "/granian/" in mapped
        for library in ("cryptography", "confluent_kafka", "pyarrow", "numpy"):
            assert f"/{library}/" not in mapped


def test_locked_session_store_delays_pages_and_fails_none(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    service = start_service(*SERVE, str(tmp_path))
    with sqlite3.connect(tmp_path / "console.db", isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert get(f"{service.addresses['console']}/")[0] == 200
        database.execute("ROLLBACK")


def test_worker_ends_with_killed_parent_and_is_replaced_after_its_own_death(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    service = start_service(*SERVE, str(tmp_path))
    url, parent = service.addresses["console"], service.process.pid
    worker = worker_of(parent)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if get(f"{url}/healthz")[0] == 200 and worker_of(parent) != worker:
                break
        except (OSError, IndexError):
            time.sleep(0.1)
    second = worker_of(parent)
    assert second != worker
    service.kill()
    while time.monotonic() < deadline and Path(f"/proc/{second}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{second}").exists()


def users_and_settings(directory: Path, **console: str) -> Path:
    """Writes a users file and a settings file that names it; returns the settings file."""
    (directory / "users").write_text(user_line("lea") + "grant lea read *\n")
    lines = [f'[registry]\nusers = "{directory / "users"}"', "[console]"]
    path = directory / "headrace.toml"
    path.write_text("\n".join([*lines, *(f'{name} = "{value}"' for name, value in console.items())]))
    return path


def test_console_serves_https_with_a_secure_cookie(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.certificate("console")
    settings = users_and_settings(tmp_path, tls_certificate=str(certificate), tls_key=str(key))
    service = start_service(*SERVE, str(tmp_path), "--config", str(settings))
    url = service.addresses["console"]
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=authority.ca_file)
    session, cookie = signed_in(url, context)
    assert cookie.startswith("__Host-headrace=")
    assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    with session.open(f"{url}/topics") as page:
        assert '<span class="user">lea</span>' in page.read().decode()
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(url.replace("https:", "http:"), timeout=30)


def signed_in(url: str, context: ssl.SSLContext | None = None) -> tuple[urllib.request.OpenerDirector, str]:
    """Signs in the user `lea`. Returns a client with the session's cookie, and the header that set the cookie."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPCookieProcessor(), _KeepRedirect()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    client = urllib.request.build_opener(*handlers)
    form = urllib.parse.urlencode({"user": "lea", "password": PASSWORD}).encode()
    with client.open(urllib.request.Request(f"{url}/sign-in", form, SAME_ORIGIN)) as response:
        return client, str(response.headers["Set-Cookie"])


class _KeepRedirect(urllib.request.HTTPRedirectHandler):
    """Returns the redirect of the sign-in, whose headers have the cookie."""

    def http_error_303(self, request: Any, response: Any, *_: Any) -> Any:
        return response


@pytest.mark.postgres
def test_sessions_in_postgresql_outlive_the_console_and_are_shared(
    tmp_path: Path, start_service: Callable[..., Any], postgres_server: PostgresServer
) -> None:
    database = postgres_server.new_database()
    settings = users_and_settings(tmp_path, database_url=database)
    consoles = [start_service(*SERVE, str(tmp_path / name), "--config", str(settings)) for name in ("a", "b")]
    first, second = (one.addresses["console"] for one in consoles)
    session, _ = signed_in(first)
    for url in (first, second):
        with session.open(f"{url}/topics") as page:
            assert '<span class="user">lea</span>' in page.read().decode()
    assert not list(tmp_path.glob("*/console.db"))
    assert consoles[0].stop() == 0
    third = start_service(*SERVE, str(tmp_path / "a"), "--config", str(settings)).addresses["console"]
    with session.open(f"{third}/topics") as page:
        assert '<span class="user">lea</span>' in page.read().decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--console-listen", "0.0.0.0:0"], "registry.users"),
        (["--console-listen", "127.0.0.1:{used}"], "--console-listen"),
        (["--users", "{missing}"], "users file"),
        (["--config", "{config}"], "console.database_url"),
    ],
)
def test_console_that_cannot_start_states_the_remedy_in_one_line(
    tmp_path: Path,
    start_service: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    used = ""
    if any("{used}" in one for one in arguments):
        used = start_service(*SERVE, str(tmp_path)).addresses["console"].rpartition(":")[2]
    config = tmp_path / "headrace.toml"
    config.write_text('[console]\ndatabase_url = "sqlite:////proc/none/console.db"\n')
    given = [one.format(used=used, missing=tmp_path / "none", config=config) for one in arguments]
    assert cli.main(["console", "serve", "--data-dir", str(tmp_path), *given]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert words in errors
