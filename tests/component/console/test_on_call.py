"""The console in Chromium as on call: from an alert to the repair by keyboard alone; stored scripts stay text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from headrace.audit.storage.store import AuditStore
from headrace.console.actions.worker import ActionWorker, CommandResult
from headrace.console.pages import now
from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.rule import AlertSeverity
from headrace.pipeline.alerts.storage import AlertStore
from headrace.settings import KafkaSettings, LoaderSettings, RegistrySettings, Settings
from support.audit_rows import three_tiers
from support.console import NOW_MS, PASSWORD, ConsoleWorld, console_world, user_line
from support.console_browser import CHROMIUM, chromium, context_of, served, watched
from support.console_hostile import HOSTILE_TOPIC, SCRIPT, STATUS, fill_alerts, fill_audit, fill_registry, fill_runs
from support.loader.shelf import Shelf
from support.registry.migrated_databases import SqliteTemplate
from support.registry.served_registry import serve_registry

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium: apt-get install chromium"),
]

REPLAYED = {"loaded": {"framing": 1}, "left": {}, "commit_number": 0, "problems": [], "notes": []}
TABS_MAX = 80


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def press_until(page: Page, words: str) -> None:
    """Presses Tab until the focus is on a link or button with the words, and then Enter."""
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip().startswith(words):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the keyboard does not reach {words} on {page.url}")


def sign_in_by_keyboard(page: Page, url: str) -> None:
    page.goto(f"{url}/alerts")
    press_until(page, "Sign in")
    page.wait_for_url("**/sign-in*")
    while page.evaluate("document.activeElement.name") != "user":
        page.keyboard.press("Tab")
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/")
    press_until(page, "Alerts")
    page.wait_for_url("**/alerts")


def alert_about(topic: str) -> Alert:
    return Alert(
        id="a" * 12,
        fingerprint="b" * 16,
        kind="audit-missing",
        subject=topic,
        source="audit",
        problem="1 of 10 messages read are in no row",
        show=f"headrace audit report --topic {topic}",
        repair="send them again",
        severity=AlertSeverity.PAGE,
        state=AlertState.FIRING,
        opened_ms=NOW_MS,
        since_ms=NOW_MS,
        seen_ms=NOW_MS,
        fired_ms=NOW_MS,
        firings=1,
    )


@pytest.fixture
def orders(tmp_path: Path, broker_address: str) -> ConsoleWorld:
    """A console about a topic with an alert, a window that differs, and a message in quarantine."""
    producer = Producer({"bootstrap.servers": broker_address})
    producer.produce("orders", b'{"id": 4711}', partition=0)
    assert producer.flush(30) == 0
    Shelf(tmp_path).load({}, (0, None, 0, 1), quarantined={"dt=2026-11-18/hr=10": [(0, 0)]})
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows(three_tiers("orders", NOW_MS // 600_000 - 20, lost=1))
        store.update_verdicts(now_ms=NOW_MS, grace_ms=0)
    with AlertStore(tmp_path / "audit.db") as store, store.changing() as change:
        change.set_alerts([alert_about("orders")], [])
        change.set_evaluated(NOW_MS)
    settings = Settings(
        loader=LoaderSettings(warehouse=str(tmp_path / "warehouse")),
        kafka=KafkaSettings(bootstrap_servers=broker_address),
    )
    users = f"{user_line('ada')}grant ada admin *\ngrant ada payload orders\ngrant anonymous read *\n"
    world = console_world(tmp_path, users, settings)

    def command(words: Sequence[str], is_wanted: object) -> CommandResult:
        return CommandResult({**REPLAYED, "commit_number": 0 if "--dry-run" in words else 7})

    ActionWorker(world.actions, command, lambda: NOW_MS).start()
    return world


def test_alert_leads_to_topic_message_and_replay_by_keyboard_alone(browser: Browser, orders: ConsoleWorld) -> None:
    with served(orders) as url, context_of(browser, "light") as context:
        page = context.new_page()
        said = watched(page)
        sign_in_by_keyboard(page, url)
        press_until(page, "orders")
        page.wait_for_url("**/topics/orders*")
        assert "missing" in page.locator("main").inner_text()
        press_until(page, "Messages")
        page.get_by_text("Offsets 0 to 0 of 0 to 0 in the log").wait_for()
        assert "4711" in page.locator("main").inner_text()
        press_until(page, "Quarantine")
        page.wait_for_url("**/quarantine*")
        press_until(page, "orders")
        page.wait_for_url("**topic=orders*")
        press_until(page, "Load…")
        page.wait_for_url("**/actions/new?*")
        press_until(page, "Start the dry run")
        page.get_by_text("Dry run:").first.wait_for()
        while page.evaluate("document.activeElement.name") != "reason":
            page.keyboard.press("Tab")
        page.keyboard.type("the schema is registered now")
        page.keyboard.press("Enter")
        page.get_by_text("The action is done.").wait_for()
        assert said == []


HOSTILE_PAGES = (
    *("/?show=all", "/topics", "/loads", "/alerts", "/alerts?show=silences", "/system", "/quarantine", "/schemas"),
    *(f"/?q={quote(SCRIPT)}", f"/topics?q={quote(SCRIPT)}", f"/schemas?q={quote(SCRIPT)}"),
    f"/topics/{quote(HOSTILE_TOPIC, safe='')}?show=all",
)


@pytest.mark.parametrize("java_script_enabled", [True, False])
def test_scripts_in_stored_texts_do_not_run(
    browser: Browser, tmp_path: Path, sqlite_template: SqliteTemplate, java_script_enabled: bool
) -> None:
    for fill in (fill_audit, fill_alerts, fill_runs):
        fill(tmp_path)
    with (
        serve_registry(sqlite_template.copy_to(tmp_path / "registry.db")) as registry,
        pytest.MonkeyPatch.context() as patch,
        context_of(browser, "light", java_script_enabled=java_script_enabled) as context,
    ):
        fill_registry(registry)
        patch.setattr(now, "platform_status", lambda settings, **_: dataclasses.replace(STATUS, checked_at_ms=NOW_MS))
        users = f"{user_line('ada')}grant ada admin *\ngrant anonymous read *\n"
        with served(console_world(tmp_path, users, Settings(registry=RegistrySettings(url=registry.url)))) as url:
            page = context.new_page()
            said = watched(page)
            for path in HOSTILE_PAGES:
                assert page.goto(url + path).status == 200, path  # type: ignore[union-attr]
                assert page.locator("img, iframe, script:not([src])").count() == 0
    assert said == []
