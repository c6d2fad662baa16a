"""The pages in Debian's Chromium: accessibility, keyboard, without script, stored scripts, a foreign page.

`apt-get install chromium` installs the browser; `make setup-dev` installs playwright and axe-core.
"""

from __future__ import annotations

import base64
import http.server
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from headrace.audit.storage.store import AuditStore
from headrace.console.actions.kinds import ACTION_KINDS
from headrace.console.actions.worker import ActionWorker, CommandResult
from headrace.console.pages import now
from headrace.loader.run_log import append_line
from headrace.pipeline.status.finding import PlatformStatus, StatusFact, finding
from headrace.settings import LoaderSettings, RegistrySettings, Settings
from support.audit_rows import three_tiers
from support.audit_story import GRACE_MS, TOPICS, fill_store
from support.console import NOW_MS, PASSWORD, ConsoleWorld, console_world, user_line
from support.console_brokers import replace_brokers
from support.console_browser import (
    CHROMIUM,
    VIEWS,
    accessibility_findings,
    chromium,
    context_of,
    is_wider_than_screen,
    served,
    watched,
)
from support.console_loads import LINES, SLOW
from support.console_schemas import register_samples
from support.console_tables import loaded_world
from support.registry.migrated_databases import SqliteTemplate
from support.registry.served_registry import serve_registry

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium: apt-get install chromium"),
]

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}"
STATUS = PlatformStatus(
    NOW_MS,
    (
        finding("disk-low", "disk of data_dir", "3.1 GiB of 252 GiB free", since_ms=NOW_MS - 7_200_000),
        finding("alarm-quarantined", SCRIPT, SCRIPT, show=SCRIPT, repair=SCRIPT),
    ),
    (StatusFact("registry", SCRIPT),),
)
CREDENTIALS = base64.b64encode(f"lea:{PASSWORD}".encode()).decode()
PAGES = {
    "now": "/",
    "now in 30 days": "/?range=30d&show=all",
    "topics": "/topics?sort=-missing",
    "topic": "/topics/payments.captured",
    "topic in a week": f"/topics/search.queries?range=7d&at={NOW_MS - 24_000_000}",
    "topic with controls": f"/topics/{quote(TOPICS[-1], safe='')}",
    "no topic": "/topics/nope",
    "partitions": "/partitions",
    "partitions of a topic": "/partitions?topic=payments.captured",
    "groups of a topic": f"/partitions?topic={quote(TOPICS[-1], safe='')}&show=groups",
    "messages": "/messages?topic=payments.captured",
    "find": "/find",
    "message found": "/find?topic=payments.captured&partition=0&offset=40",
    "time found": f"/find?topic=payments.captured&at={NOW_MS}",
    "key to find": f"/find?topic=payments.captured&key={quote('<script>alert(1)</script>')}",
    "loads": "/loads",
    "one load": f"/loads/{SLOW.run_id}",
    "quarantine": "/quarantine",
    "tables": "/tables",
    "columns of a table": "/tables/orders",
    "rules of a table": "/tables/orders?show=rules",
    "history of a table": "/tables/orders?show=history",
    "days of a table": "/tables/orders?show=days",
    "alerts": "/alerts",
    "actions": "/actions?show=open",
    "system": "/system",
    "schemas": "/schemas",
    "subject": "/schemas/subject?name=orders-value",
    "versions compared": "/schemas/diff?name=orders-value&from=1&to=3",
    "schema to try": "/schemas/try?name=orders-value",
    "sign-in": "/sign-in",
}
ACTION_PAGES = {
    "request": "/actions/new?action=quarantine-discard&topic=orders",
    "request to silence": "/actions/new?action=alert-silence&subject=disk&kind=disk-low&duration=2h",
    "log": "/actions",
    "dry run done": "/actions/1",
    "failed": "/actions/2",
    "queued": "/actions/3",
}
DISCARDED = {
    "discarded": {"framing": 2},
    "left": {"malformed": 1},
    "commit_number": 0,
    "problems": [],
    "notes": [SCRIPT],
}


def command(words: Sequence[str], is_wanted: Callable[[], bool]) -> CommandResult:
    """Stands for the commands of actions: topics named `bad` fail, and a change is committed."""
    if words[-1] == "bad":
        return CommandResult(error=SCRIPT)
    if "audit" in words:
        return CommandResult([{"window": "2026-11-18 06:30Z", "verdict": "missing", "difference": -12}])
    return CommandResult({**DISCARDED, "commit_number": 0 if "--dry-run" in words else 7})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, sqlite_template: SqliteTemplate) -> Iterator[ConsoleWorld]:
    directory = tmp_path_factory.mktemp("console")
    with AuditStore(directory / "audit.db") as store:
        fill_store(store, NOW_MS)
    for line in LINES:
        append_line(directory / "logs" / "runs.jsonl", line)
    patch = pytest.MonkeyPatch()
    patch.setattr(now, "platform_status", lambda settings, **_: STATUS)
    replace_brokers(patch)
    users = user_line("lea") + user_line("ada")
    users += "grant lea read *\ngrant lea payload *\ngrant ada admin *\ngrant anonymous read *\n"
    with serve_registry(sqlite_template.copy_to(directory / "registry.db")) as registry:
        register_samples(registry)
        loader = LoaderSettings(warehouse=str(loaded_world(directory).warehouse))
        yield console_world(directory, users, Settings(registry=RegistrySettings(url=registry.url), loader=loader))
    patch.undo()


@pytest.fixture(scope="module")
def url(world: ConsoleWorld) -> Iterator[str]:
    with served(world) as found:
        yield found


@pytest.mark.parametrize("view", VIEWS)
def test_pages_are_accessible_and_fit_the_screen(browser: Browser, url: str, view: str) -> None:
    problems = []
    with context_of(browser, view) as context:
        for name, path in PAGES.items():
            page = context.new_page()
            if name == "messages":
                page.set_extra_http_headers({"Authorization": f"Basic {CREDENTIALS}"})
            said = watched(page)
            page.goto(url + path)
            found = [*accessibility_findings(page), *said]
            found += ["wider than the screen"] if is_wider_than_screen(page) else []
            problems += [f"{name}: {one}" for one in found]
            page.close()
    assert problems == []


def sign_in(page: Page, url: str, user: str) -> None:
    page.goto(f"{url}/sign-in?next=/topics")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/topics")


@pytest.fixture
def actions(world: ConsoleWorld, tmp_path: Path) -> ConsoleWorld:
    """A console with the same counts, and the actions of `ACTION_PAGES`. Only some tests start its worker."""
    (tmp_path / "audit.db").symlink_to(world.users_path.parent / "audit.db")
    own = console_world(tmp_path, world.users_path.read_text())
    for topic in ("orders", "bad", "clicks"):
        arguments = {"topic": topic, "code": "framing"}
        own.actions.request(ACTION_KINDS["quarantine-discard"], arguments, "ada", NOW_MS)
        if topic != "clicks":
            worker_of(own).step()
    return own


def worker_of(world: ConsoleWorld) -> ActionWorker:
    return ActionWorker(world.actions, command, lambda: NOW_MS)


@pytest.fixture
def actions_url(actions: ConsoleWorld) -> Iterator[str]:
    with served(actions) as found:
        yield found


@pytest.mark.parametrize("view", VIEWS)
def test_pages_of_actions_are_accessible_and_fit_the_screen(browser: Browser, actions_url: str, view: str) -> None:
    problems = []
    with context_of(browser, view) as context:
        sign_in(context.new_page(), actions_url, "ada")
        for name, path in ACTION_PAGES.items():
            page = context.new_page()
            said = watched(page)
            page.goto(actions_url + path)
            assert "49" not in page.locator("main").inner_text()
            found = [*accessibility_findings(page), *said]
            found += ["wider than the screen"] if is_wider_than_screen(page) else []
            problems += [f"{name}: {one}" for one in found]
            page.close()
    assert problems == []


def press_until(page: Page, words: str) -> None:
    """Presses Tab until the focus is on an element with the words, and then Enter."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip().startswith(words):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the keyboard does not reach {words}")


def test_event_is_accepted_by_keyboard_alone(browser: Browser, actions: ConsoleWorld, actions_url: str) -> None:
    worker_of(actions).start()
    with context_of(browser, "light") as context:
        page = context.new_page()
        sign_in(page, actions_url, "ada")
        page.goto(f"{actions_url}/topics/payments.captured")
        press_until(page, "Accept")
        page.wait_for_url("**/actions/new?*")
        press_until(page, "Start the dry run")
        page.wait_for_url("**/actions/4")
        page.get_by_text("Dry run: 1 window").wait_for()  # the page follows the action
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.name") != "reason":
            page.keyboard.press("Tab")
        page.keyboard.type("disk of kafka-2, ticket 4711")
        page.keyboard.press("Enter")
        page.get_by_text("Changed: 1 window").wait_for()
        assert page.locator("#action-state").inner_text() == "The action is done."


def test_messages_are_deleted_without_script_after_typing_the_name(
    browser: Browser, actions: ConsoleWorld, actions_url: str
) -> None:
    worker_of(actions).start()
    with context_of(browser, "light", java_script_enabled=False) as context:
        page = context.new_page()
        sign_in(page, actions_url, "ada")
        page.goto(f"{actions_url}/actions/1")
        page.get_by_label("Reason").fill("tests")
        page.get_by_label("Type the name").fill("other")
        page.get_by_role("button", name="Delete 2 messages").click()
        assert "does not match" in page.get_by_role("alert").inner_text()
        page.get_by_label("Type the name").fill("orders")
        page.get_by_role("button", name="Delete 2 messages").click()
        page.get_by_text("Changed: 2 messages").wait_for()  # the page is loaded again by itself


def test_stored_scripts_do_not_run(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        page = context.new_page()
        said = watched(page)
        for path in (
            "/?show=all",
            "/topics",
            "/tables",
            "/tables/orders",
            f"/?q={quote(SCRIPT)}",
            f"/topics?q={quote(SCRIPT)}",
        ):
            page.goto(url + path)
        assert said == []
        assert "49" not in page.locator("main").inner_text()
        page.goto(url)
        assert "onerror" in page.locator("main").inner_text()  # as text


def test_scripts_in_messages_and_names_of_brokers_do_not_run(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        context.set_extra_http_headers({"Authorization": f"Basic {CREDENTIALS}"})
        page = context.new_page()
        said = watched(page)
        for name in ("partitions", "groups of a topic", "messages", "time found", "key to find"):
            page.goto(url + PAGES[name])
            assert "<script>alert(1)" in page.locator("main").inner_text(), name  # as text
        assert said == []


def test_message_is_found_without_script(browser: Browser, url: str) -> None:
    with context_of(browser, "light", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/find")
        form = page.get_by_role("region", name="By offset")
        form.get_by_label("Topic").fill("payments.captured")
        form.get_by_label("Offset").fill("40")
        form.get_by_role("button").click()
        assert page.locator("h1").inner_text() == "The message has not been loaded."
        page.get_by_role("link", name="Partitions of the topic").click()
        page.get_by_role("link", name="Consumer groups").click()
        assert "show=groups" in page.url


def test_pages_work_without_script(browser: Browser, url: str) -> None:
    with context_of(browser, "light", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(url)
        page.get_by_role("searchbox", name="Topics with").fill("FLIGHTS")
        page.get_by_role("button", name="Search").click()
        assert page.locator("table.rails tbody tr").count() == 1
        page.get_by_role("button", name="7 days").click()
        assert "range=7d" in page.url
        assert "q=FLIGHTS" in page.url
        page.locator("table.rails tbody a").first.click()
        assert page.locator("h1").inner_text() == "flights"
        assert not page.locator("button.theme").is_visible()


def test_incident_leads_to_its_window_by_keyboard_alone(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        page = context.new_page()
        page.goto(url)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "search.queries"
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics/search.queries?*")
        assert page.locator("tr.here").count() == 1
        assert "mismatch" in page.locator("tr.here").inner_text()


def test_times_are_utc_and_local_under_the_pointer(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        page = context.new_page()
        page.goto(f"{url}/topics/payments.captured")
        time = page.locator("tbody time").first
        assert time.inner_text() == "06:30"
        time.hover()
        assert "12:00:00" in (time.get_attribute("title") or "")  # Asia/Kolkata
        page.locator(".chart .rail").hover()
        assert re.search(r"UTC · \d\d:\d\d here · complete", page.locator(".reading").inner_text())


def test_chosen_theme_stays(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        page = context.new_page()
        page.goto(url)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Light or dark").click()
        page.goto(f"{url}/topics")
        assert page.locator("html").get_attribute("data-theme") == "dark"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_sign_in_and_out(browser: Browser, url: str) -> None:
    with context_of(browser, "light") as context:
        page, second = context.new_page(), context.new_page()
        page.goto(f"{url}/sign-in?next=/topics")
        page.get_by_label("User").fill("lea")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/topics")
        second.goto(url)
        assert "lea" in second.locator(".who").inner_text()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/")
        second.reload()
        assert "lea" not in second.locator(".who").inner_text()


class _ForeignPage(http.server.BaseHTTPRequestHandler):
    """A page of another port of 127.0.0.1 that posts a form to the console as soon as it is open."""

    target = ""

    def do_GET(self) -> None:
        body = f"<form id=f method=post action={self.target}></form><script>f.submit()</script>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_form_of_another_port_is_rejected_although_it_sends_the_cookie(browser: Browser, url: str) -> None:
    handler = type("Foreign", (_ForeignPage,), {"target": f"{url}/sign-out"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with context_of(browser, "light") as context:
        page = context.new_page()
        page.goto(f"{url}/sign-in")
        page.get_by_label("User").fill("lea")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/")
        with page.expect_response(f"{url}/sign-out") as answer:
            page.goto(f"http://127.0.0.1:{server.server_port}/")
        assert answer.value.status == 403
        assert "headrace=" in (answer.value.request.all_headers().get("cookie") or "")
        page.goto(url)
        assert "lea" in page.locator(".who").inner_text()
    server.shutdown()
    server.server_close()


def test_action_of_a_page_of_another_port_is_rejected(browser: Browser, actions_url: str) -> None:
    handler = type("Foreign", (_ForeignPage,), {"target": f"{actions_url}/actions"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with context_of(browser, "light") as context:
        page = context.new_page()
        sign_in(page, actions_url, "ada")
        with page.expect_response(f"{actions_url}/actions") as answer:
            page.goto(f"http://127.0.0.1:{server.server_port}/")
        assert answer.value.status == 403
        assert "headrace=" in (answer.value.request.all_headers().get("cookie") or "")
        page.goto(f"{actions_url}/actions")
        assert page.locator("tbody tr").count() == 3
    server.shutdown()
    server.server_close()


def test_topics_named_by_dots_have_pages_of_their_own(browser: Browser, tmp_path: Path) -> None:
    # Browsers resolve such segments of a path. Kafka forbids these names, but a producer may count them.
    with AuditStore(tmp_path / "audit.db") as store:
        for name in (".", ".."):
            store.add_rows(three_tiers(name, NOW_MS // 600_000 - 9, lost=1))
        store.update_verdicts(now_ms=NOW_MS, grace_ms=GRACE_MS)
    with served(console_world(tmp_path)) as url, context_of(browser, "light") as context:
        page = context.new_page()
        for name in (".", ".."):
            page.goto(f"{url}/topics")
            page.get_by_role("link", name=name, exact=True).click()
            assert page.locator("h1").inner_text() == name
            page.get_by_role("link", name="Table", exact=True).click()
            assert f"The topic {name} has not been loaded." in page.locator("main").inner_text()
            assert page.goto(f"{url}/tables/{name}%2F/x").status == 404


def test_random_urls_never_fail(world: ConsoleWorld) -> None:
    from support.console_urls import is_refused_export, random_urls

    client = world.client()
    for address in random_urls(2000, seed=7):
        response = client.get(address)
        assert response.status_code < 500 or is_refused_export(response), address


def test_style_and_script_are_small() -> None:
    directory = Path(now.__file__).parent.parent / "static"
    assert sum(path.stat().st_size for path in directory.iterdir()) < 60_000
