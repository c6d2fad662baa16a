"""Every test and benchmark that the page on the loader's guarantees names exists."""

from __future__ import annotations

import re

from support.checkout import ROOT

NAMED = sorted(set(re.findall(r"`((?:tests|bench)/[\w/]+\.py(?:::\w+)?)`", (ROOT / "docs/loader.md").read_text())))


def test_tests_and_benchmarks_of_the_page_exist() -> None:
    assert NAMED
    assert [named for named in NAMED if not exists(named)] == []


def exists(named: str) -> bool:
    path, _, name = named.partition("::")
    file = ROOT / path
    return file.is_file() and (not name or f"\ndef {name}(" in file.read_text(encoding="utf-8"))


def test_every_row_of_its_tables_names_a_test_or_benchmark() -> None:
    page = (ROOT / "docs/loader.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!guarantee|what |-)(.*) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`(?:tests|bench)/", row)] == []
