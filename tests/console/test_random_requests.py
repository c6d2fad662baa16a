"""Random requests to every route of a console with scripts in all its texts: none fails, and no page runs a script.

`HEADRACE_CONSOLE_REQUESTS` is the number of requests: 400, and 10,000 in `make test-full`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from headrace.console.pages import now
from headrace.settings import RegistrySettings, Settings
from support.console import SAME_ORIGIN, ConsoleWorld, console_world, user_line
from support.console_hostile import (
    HOSTILE_TOPIC,
    SCRIPT,
    STATUS,
    active_content,
    fill_alerts,
    fill_audit,
    fill_registry,
    fill_runs,
    random_requests,
)
from support.console_urls import is_refused_export
from support.registry.migrated_databases import SqliteTemplate
from support.registry.served_registry import serve_registry

REQUESTS = int(os.environ.get("HEADRACE_CONSOLE_REQUESTS", "400"))
SEED = 7
REQUESTS_OF_A_SESSION = 100
SEARCHED = ("/", "/topics", "/schemas", "/tables")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, sqlite_template: SqliteTemplate) -> Iterator[ConsoleWorld]:
    directory = tmp_path_factory.mktemp("console")
    for fill in (fill_audit, fill_alerts, fill_runs):
        fill(directory)
    with (
        serve_registry(sqlite_template.copy_to(directory / "registry.db")) as registry,
        pytest.MonkeyPatch.context() as patch,
    ):
        fill_registry(registry)
        patch.setattr(now, "platform_status", lambda settings, **_: STATUS)
        users = "".join(user_line(name) for name in ("ada", "lea")) + "grant ada admin *\ngrant ada read *\n"
        users += "grant ada payload *\ngrant lea read orders*\ngrant anonymous read *\n"
        yield console_world(directory, users, Settings(registry=RegistrySettings(url=registry.url)))


def clients(world: ConsoleWorld) -> Iterator[FlaskClient]:
    """Yields clients of an administrator, a reader and an anonymous viewer in turn; each signs in again regularly."""
    while True:
        for client in (world.signed_in("ada"), world.signed_in("lea"), world.client()):
            for _ in range(REQUESTS_OF_A_SESSION):
                yield client


def test_random_requests_never_fail_and_no_page_runs_a_script(world: ConsoleWorld) -> None:
    statuses: dict[int, int] = {}
    for request, client in zip(random_requests(world.app, REQUESTS, SEED), clients(world), strict=False):
        headers = SAME_ORIGIN if request.is_same_origin else {"Sec-Fetch-Site": "cross-site"}
        response = client.open(request.address, method=request.method, data=request.form, headers=headers)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert response.status_code < 500 or is_refused_export(response), (request, response.text[:500])
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        if response.mimetype == "text/html":
            assert "script-src 'self'" in response.headers["Content-Security-Policy"]
            assert active_content(response.text) == [], request
    assert statuses[200] > REQUESTS / 5, statuses


@pytest.mark.parametrize("path", ["/loads", "/alerts", "/system", "/quarantine", "/partitions", "/actions", *SEARCHED])
def test_stored_scripts_are_text(world: ConsoleWorld, path: str) -> None:
    response = world.signed_in("ada").get(path, query_string={"q": SCRIPT} if path in SEARCHED else {"show": "all"})
    assert response.status_code == 200
    assert active_content(response.text) == []
    assert "49" not in response.text.partition("<main")[2].split("{{7*7}}")[0][-20:]


def test_topic_of_scripts_names_its_producer_as_text(world: ConsoleWorld) -> None:
    page = world.client().get("/topics/" + HOSTILE_TOPIC.replace("/", "%2F")).text
    assert active_content(page) == []
    assert page.count("onerror") > 2


def test_check_finds_active_content() -> None:
    for html in ("<script>x</script>", "<img src=x>", "<a href=' JavaScript:x'>", "<p onclick=x>", "<p style='x'>"):
        assert active_content(html), html
    assert active_content("<script src=/static/a.js defer></script><p>&lt;script&gt;</p><a href='/x'>") == []
