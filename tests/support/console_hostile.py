"""A console whose stored texts all carry scripts, random requests to it, and a check that a page runs none."""

from __future__ import annotations

import dataclasses
import random
import string
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from flask import Flask

from headrace.audit.storage.store import AuditStore
from headrace.audit.verdict import Acceptance, AuditVerdict
from headrace.loader.run_log import append_line
from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.delivery import Silence
from headrace.pipeline.alerts.rule import AlertSeverity
from headrace.pipeline.alerts.storage import AlertStore
from headrace.pipeline.status.finding import PlatformStatus, StatusFact, finding
from support.audit_rows import three_tiers
from support.audit_story import GRACE_MS, TOPICS, fill_store
from support.console import NOW_MS
from support.console_loads import FAILED, LINES, SLOW
from support.console_schemas import EVIL, field, record, register_samples
from support.registry.served_registry import ServedRegistry

SCRIPT: Final = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\u202e"
HOSTILE_TOPIC: Final = SCRIPT[:200]
STATUS: Final = PlatformStatus(
    NOW_MS,
    (
        finding("disk-low", "disk of data_dir", "3.1 GiB of 252 GiB free", since_ms=NOW_MS - 7_200_000),
        finding("alarm-quarantined", SCRIPT, SCRIPT, show=SCRIPT, repair=SCRIPT),
    ),
    (StatusFact("registry", SCRIPT),),
)


def fill_audit(directory: Path) -> None:
    """Adds counts whose topic, application, host, instance, data centre and acceptance carry scripts."""
    now_window = NOW_MS // 600_000
    with AuditStore(directory / "audit.db") as store:
        fill_store(store, NOW_MS)
        hostile = {"application": SCRIPT, "host": SCRIPT, "instance": SCRIPT, "datacenter": SCRIPT}
        for number in range(now_window - 20, now_window - 5):
            store.add_rows(three_tiers(HOSTILE_TOPIC, number, number % 2, **hostile))
        store.update_verdicts(now_ms=NOW_MS, grace_ms=GRACE_MS)
        window = (now_window - 7) * 600_000
        for one in (AuditVerdict.MISSING, AuditVerdict.MISMATCH):
            store.accept([Acceptance(HOSTILE_TOPIC, window, one, -1, SCRIPT, SCRIPT, NOW_MS)])
        store.update_verdicts(now_ms=NOW_MS, grace_ms=GRACE_MS)


def fill_alerts(directory: Path) -> None:
    alert = Alert(
        id="a" * 12,
        fingerprint="b" * 16,
        kind="audit-missing",
        subject=SCRIPT,
        source="audit",
        problem=SCRIPT,
        show=SCRIPT,
        repair=SCRIPT,
        severity=AlertSeverity.PAGE,
        state=AlertState.FIRING,
        opened_ms=NOW_MS,
        since_ms=NOW_MS,
        seen_ms=NOW_MS,
        fired_ms=NOW_MS,
        firings=1,
    )
    with AlertStore(directory / "audit.db") as store, store.changing() as change:
        change.set_alerts([alert], [])
        change.add_silence(Silence("c" * 8, SCRIPT, SCRIPT, SCRIPT, SCRIPT, NOW_MS, NOW_MS + 3_600_000))
        change.set_evaluated(NOW_MS)


def fill_runs(directory: Path) -> None:
    outcomes = tuple(one._replace(topic=SCRIPT, problem=SCRIPT) for one in SLOW.topic_outcomes)
    hostile = dataclasses.replace(SLOW, run_id=SCRIPT, problem_topics=(SCRIPT,), topic_outcomes=outcomes)
    for line in (*LINES, hostile, dataclasses.replace(FAILED, error=SCRIPT)):
        append_line(directory / "logs" / "runs.jsonl", line)


def fill_registry(registry: ServedRegistry) -> None:
    """Registers schemas with scripts in subject, docs, defaults and the properties of fields."""
    register_samples(registry)
    with registry.client as client:
        texts = [field("a", doc=SCRIPT, default=SCRIPT), field("b", ["null", "string"], default=None, note=SCRIPT)]
        client.register(f"hostile {EVIL}", record("Hostile", *texts, doc=SCRIPT, **{SCRIPT: SCRIPT}))
        more = field("c", doc=f"{SCRIPT} changed", default=SCRIPT)
        client.register(f"hostile {EVIL}", record("Hostile", *texts, more, doc=SCRIPT))


class ConsoleRequest(NamedTuple):
    method: str
    address: str
    form: dict[str, str]
    is_same_origin: bool


KEYS: Final = (
    *("range", "at", "q", "show", "sort", "page", "as", "next", "user", "topic", "name", "from", "to", "action", "run"),
    *("joined", "id", "code", "version", "partition", "offset", "time", "key", "group", "limit", "day", "subject"),
)
FORM_KEYS: Final = (
    *("form_token", "action", "topic", "code", "reason", "name", "user", "password", "next", "schema", "duration"),
    *("kind", "subject", "since", "until", "from", "to"),
)
VALUES: Final = (
    *("7d", "30d", "all", "-1", "0", str(NOW_MS), "9" * 30, "-topic", "window", "csv", "json", "rules", "silences"),
    *("deliveries", "tasks", "%00", "1e5", "", "orders-value", "orders", "quarantine-discard", "alert-silence", "2h"),
    *(HOSTILE_TOPIC, SCRIPT, "x" * 300, "1", "2", "../../etc/passwd", "javascript:alert(1)", "//example.org", "\ud800"),
)
_ALPHABET: Final = string.printable + "é漢\u202e\x00🙂"


def random_requests(app: Flask, count: int, seed: int) -> Iterator[ConsoleRequest]:
    """Returns requests to all routes of a console, with random methods, paths, arguments and forms."""
    chosen = random.Random(seed)
    rules = sorted({rule.rule for rule in app.url_map.iter_rules()})
    for _ in range(count):
        path = "".join(
            part if not part.startswith("<") else quote(_value(chosen), safe="/", errors="replace")
            for part in _parts(chosen.choice(rules))
        )
        if chosen.random() < 0.15:
            path += quote(
                "".join(chosen.choices(_ALPHABET, k=chosen.randint(1, 30))), safe=chosen.choice(("/", "/%?&="))
            )
        pairs = [(chosen.choice(KEYS), _value(chosen)) for _ in range(chosen.randint(0, 5))]
        method = chosen.choices(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"), (70, 20, 3, 3, 2, 2))[0]
        form = {chosen.choice(FORM_KEYS): _value(chosen) for _ in range(chosen.randint(0, 6))}
        yield ConsoleRequest(
            method,
            f"{path}?{urlencode(pairs, errors='replace')}",
            {key: value.encode("utf-8", "replace").decode() for key, value in form.items()} if method == "POST" else {},
            chosen.random() < 0.9,
        )


def _parts(rule: str) -> list[str]:
    return [part for part in rule.replace("<", "\0<").replace(">", ">\0").split("\0") if part]


def _value(chosen: random.Random) -> str:
    if chosen.random() < 0.75:
        return chosen.choice((*VALUES, *TOPICS))
    return "".join(chosen.choices(_ALPHABET, k=chosen.randint(1, 12)))


class _Active(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag in ("iframe", "object", "embed", "base", "img") or (
            tag == "script" and "/static/" not in values.get("src", "")
        ):
            self.found.append(self.get_starttag_text() or tag)
        for name, value in values.items():
            is_address = name in ("href", "src", "action", "formaction", "content")
            is_script = value.strip().lower().startswith(("javascript:", "data:", "vbscript:", "//"))
            if name.startswith("on") or name in ("style", "srcdoc") or (is_address and is_script):
                self.found.append(f"{tag} {name}={value}")


def active_content(html: str) -> list[str]:
    """Returns the elements and attributes of a page that run scripts or load content which is not the console's."""
    parser = _Active()
    parser.feed(html)
    return parser.found
