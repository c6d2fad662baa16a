"""Pages look as in the screenshots of the documentation, which `HEADRACE_REWRITE_GOLDEN=1 make test-browser` rewrites.

Screenshots are compared after scaling them down: that shows moved, missing or recoloured parts, but not the rendering
of fonts, which differs between machines.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.audit.storage.store import AuditStore
from headrace.audit.window import WINDOW_MS
from headrace.console.pages import now
from headrace.pipeline.status.finding import PlatformStatus, StatusFact
from headrace.pipeline.status.metric import StatusMetric
from support.audit_rows import three_tiers
from support.audit_story import GRACE_MS, TOPICS, story_rows
from support.checkout import ROOT
from support.console import NOW_MS, console_world
from support.console_browser import CHROMIUM, chromium, served
from support.golden import REWRITES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium: apt-get install chromium"),
]

YEAR_END_MS: Final = int(datetime(2014, 1, 1, tzinfo=UTC).timestamp() * 1000)
YEAR_WINDOWS: Final = 365 * 144
SIZE_BYTES_MAX: Final = 150_000
SCALE: Final = 16
"""Pixels of a screenshot that become one of the compared ones, in each direction."""
DIFFERENCE_MAX: Final = 16
"""Largest difference of a compared pixel's colour, of 255, that fonts may cause."""
SHARE_MAX: Final = 0.003
"""Share of the compared pixels that may differ by more."""
COMPARE: Final = """
async ([one, other, scale, most]) => {
  const pixels = async data => {
    const image = new Image()
    image.src = "data:image/png;base64," + data
    await image.decode()
    const canvas = document.createElement("canvas")
    canvas.width = Math.ceil(image.width / scale)
    canvas.height = Math.ceil(image.height / scale)
    const context = canvas.getContext("2d")
    context.imageSmoothingQuality = "high"
    context.drawImage(image, 0, 0, canvas.width, canvas.height)
    return [image.width, image.height, context.getImageData(0, 0, canvas.width, canvas.height).data]
  }
  const [a, b] = [await pixels(one), await pixels(other)]
  if (a[0] !== b[0] || a[1] !== b[1]) return 1
  let differing = 0
  for (let at = 0; at < a[2].length; at += 4)
    differing += [0, 1, 2].some(of => Math.abs(a[2][at + of] - b[2][at + of]) > most)
  return differing / (a[2].length / 4)
}
"""


def loaded(at_ms: int) -> PlatformStatus:
    metric = StatusMetric("headrace_load_last_success_timestamp_seconds", at_ms / 1000)
    return PlatformStatus(at_ms, (), (StatusFact("last load", "committed", (metric,)),))


def fill_year(store: AuditStore) -> None:
    """Adds complete counts of 2013 like those of the demo: flights by day, hourly weather, and topics of one day."""
    rows = []
    for number in range(YEAR_END_MS // WINDOW_MS - YEAR_WINDOWS, YEAR_END_MS // WINDOW_MS):
        hour = number % 144 // 6
        noise = hashlib.sha256(str(number).encode()).digest()[0]
        if hour not in range(4, 10) and noise > 8:
            rows += three_tiers("flights", number)
        if number % 6 == 0:
            rows += three_tiers("weather", number)
    for topic in ("airlines", "airports", "planes"):
        rows += three_tiers(topic, YEAR_END_MS // WINDOW_MS - YEAR_WINDOWS)
    store.add_rows(rows)
    store.update_verdicts(now_ms=YEAR_END_MS, grace_ms=GRACE_MS)


def fill_day(store: AuditStore) -> None:
    shown = set(TOPICS[:8])  # the others have names that a reader of the documentation need not see
    store.add_rows([row for row in story_rows(NOW_MS) if row.topic in shown and row.emitted_at_ms <= NOW_MS])
    store.update_verdicts(now_ms=NOW_MS, grace_ms=GRACE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URLs of a console about a year without a finding, and of one about a day with several."""
    directories = {name: tmp_path_factory.mktemp(name) for name in ("year", "day")}
    with AuditStore(directories["year"] / "audit.db") as store:
        fill_year(store)
    with AuditStore(directories["day"] / "audit.db") as store:
        fill_day(store)
    times = {"year": YEAR_END_MS, "day": NOW_MS}
    worlds = {name: console_world(directory) for name, directory in directories.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            now,
            "platform_status",
            lambda settings, **_: loaded(times["day" if "day" in str(settings.data_dir) else "year"]),
        )
        for name, world in worlds.items():
            world.now_ms = times[name]
        with served(worlds["year"]) as year, served(worlds["day"]) as day:
            yield {"year": year, "day": day}


SHOTS: Final = {
    "console-year": ("year", "/?range=1y&show=all", 700),
    "console-now": ("day", "/", 780),
    "console-topic": ("day", "/topics/payments.captured", 1000),
}
"""By the name of the file in `docs/`: the console, the page, and the height."""


def opened(browser: Browser, url: str, height: int) -> Page:
    page = browser.new_page(
        viewport={"width": 1200, "height": height}, color_scheme="light", reduced_motion="reduce", timezone_id="UTC"
    )
    page.goto(url)
    return page


def share_of_differences(browser: Browser, one: bytes, other: bytes) -> float:
    page = browser.new_page()
    encoded = [base64.b64encode(image).decode() for image in (one, other)]
    share = page.evaluate(COMPARE, [*encoded, SCALE, DIFFERENCE_MAX])
    page.close()
    return float(share)


@pytest.mark.parametrize("name", SHOTS)
def test_page_looks_as_in_the_documentation(browser: Browser, urls: dict[str, str], name: str, tmp_path: Path) -> None:
    console, path, height = SHOTS[name]
    page = opened(browser, urls[console] + path, height)
    shot, file = page.screenshot(), ROOT / "docs" / f"{name}.png"
    page.close()
    if REWRITES:
        file.write_bytes(shot)
    (tmp_path / file.name).write_bytes(shot)
    share = share_of_differences(browser, shot, file.read_bytes())
    assert share <= SHARE_MAX, f"{share:.1%} of {tmp_path / file.name} differs from docs/{file.name}"
    assert file.stat().st_size <= SIZE_BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        "document.querySelector('main').style.paddingLeft = '60px'",
        "document.querySelector('.facts').remove()",
        "document.querySelectorAll('.rail path').forEach(path => path.remove())",
        "document.body.style.background = '#eee'; document.body.style.color = '#999'",
    ],
)
def test_comparison_finds_broken_layouts(browser: Browser, urls: dict[str, str], change: str) -> None:
    console, path, height = SHOTS["console-now"]
    page = opened(browser, urls[console] + path, height)
    before = page.screenshot()
    page.evaluate(change)
    assert share_of_differences(browser, before, page.screenshot()) > SHARE_MAX
    page.close()


def test_comparison_ignores_the_rendering_of_fonts(browser: Browser, urls: dict[str, str]) -> None:
    console, path, height = SHOTS["console-now"]
    page = opened(browser, urls[console] + path, height)
    before = page.screenshot()
    page.evaluate("document.body.style.webkitFontSmoothing = 'none'; document.body.style.letterSpacing = '0.002em'")
    assert share_of_differences(browser, before, page.screenshot()) <= SHARE_MAX
    page.close()
