"""Generates the tables of rules and lints in docs/compat.md from the package `compat`: `python tools/compat_page.py`.

A test fails if the page differs from the generated one. A comment with the name of the table precedes each table in the
page, and another one follows it.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.compat.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compat.md"


def tables() -> dict[str, str]:
    rules = [f"| `{row.id}` | {row.purpose} | {row.rationale} |\n" for row in CATALOGUE.values() if not row.is_lint]
    lints = [
        f"| `{row.id}` | {row.severity.value} | {row.purpose} | {row.rationale} |\n"
        for row in CATALOGUE.values()
        if row.is_lint
    ]
    return {
        "rules": "".join(("| rule | requirement | reason |\n|---|---|---|\n", *rules)),
        "lints": "".join(("| lint | severity | requirement | reason |\n|---|---|---|---|\n", *lints)),
    }


def page(text: str) -> str:
    """Returns the text of the page with newly generated tables."""
    for name, table in tables().items():
        begin, end = f"<!-- {name}: made by tools/compat_page.py -->\n", f"<!-- end of {name} -->\n"
        pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one table between {begin.strip()} and {end.strip()}, found {count}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
