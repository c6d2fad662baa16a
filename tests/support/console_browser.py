"""Debian's Chromium, driven by playwright, and a console in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from werkzeug.serving import WSGIRequestHandler, make_server

from support.console import ConsoleWorld

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM: Final = Path("/usr/bin/chromium")
VIEWS: Final = {"light": ("light", 1440, 1000), "dark": ("dark", 1440, 1000), "phone": ("light", 390, 844)}
"""Colour scheme, width and height."""
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(world: ConsoleWorld) -> Iterator[str]:
    """Serves the console on a free port; returns its URL."""
    server = make_server("127.0.0.1", 0, world.app, threaded=True, request_handler=_QuietHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, because Chromium as root has none.
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def context_of(browser: Browser, view: str, **options: Any) -> BrowserContext:
    """Returns a new browser profile with a fixed time zone, language and size."""
    scheme, width, height = VIEWS[view]
    return browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        timezone_id="Asia/Kolkata",
        locale="en-GB",
        **options,
    )


def watched(page: Page) -> list[str]:
    """Returns a list that receives the page's console messages and errors. A page that is not found is no error."""
    said: list[str] = []
    page.on("console", lambda message: None if " 404 " in message.text else said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
    return said


def accessibility_findings(page: Page) -> list[str]:
    """Returns the findings of axe-core in a page."""
    import axe_playwright_python

    # Through the debugger, which the page's CSP does not limit.
    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("rules => axe.run({runOnly: rules})", RULES)
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


def is_wider_than_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"))
