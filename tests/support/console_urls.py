"""Random requests to the console."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from urllib.parse import quote

from werkzeug.test import TestResponse

from support.audit_story import TOPICS
from support.console import NOW_MS

PAGES = (
    "/partitions",
    "/messages",
    "/messages/part",
    "/find",
    "/loads",
    "/loads/",
    "/quarantine",
    "/alerts",
    "/actions",
    "/actions/",
    "/actions/new",
    "/system",
)


def random_urls(count: int, seed: int) -> Iterator[str]:
    """Returns requests that resemble the console's, with random values."""
    chosen = random.Random(seed)
    alphabet = string.printable + "é漢\u202e\x00🙂"
    keys = (
        "range",
        "at",
        "q",
        "show",
        "sort",
        "page",
        "as",
        "next",
        "user",
        "topic",
        "action",
        "code",
        "partition",
        "offset",
        "count",
        "key",
        "since",
        "until",
    )
    values = (
        "7d",
        "30d",
        "all",
        "-1",
        str(NOW_MS),
        "9" * 30,
        "-topic",
        "window",
        "csv",
        "json",
        "rules",
        "silences",
        "deliveries",
        "tasks",
        "quarantine-discard",
        "audit-accept",
        "%00",
        "1e5",
        "",
    )
    for _ in range(count):
        parts = chosen.choice(
            ("/", "/topics", "/topics/", f"/topics/{chosen.choice(TOPICS)}", "/sign-in", "/static/", *PAGES)
        )
        if chosen.random() < 0.4:
            parts += "".join(chosen.choices(alphabet, k=chosen.randint(1, 30)))
        query = "&".join(
            f"{chosen.choice(keys)}="
            + (chosen.choice(values) if chosen.random() < 0.7 else "".join(chosen.choices(alphabet, k=8)))
            for _ in range(chosen.randint(0, 4))
        )
        safe = "/%?&=" if chosen.random() < 0.5 else "/"
        yield f"{quote(parts, safe=safe)}?{quote(query, safe='=&%+')}"


def is_refused_export(response: TestResponse) -> bool:
    """Whether this is the response to a request for rows that the console does not know now."""
    return response.status_code == 503 and "The rows are not known now." in response.text
