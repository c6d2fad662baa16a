"""Every test and benchmark that the page on the loader's guarantees names is there."""

from __future__ import annotations

import re

import pytest

from support.checkout import ROOT

NAMED = sorted(set(re.findall(r"`((?:tests|bench)/[\w/]+\.py(?:::\w+)?)`", (ROOT / "docs/loader.md").read_text())))


@pytest.mark.parametrize("named", NAMED)
def test_what_the_page_names_is_there(named: str) -> None:
    path, _, name = named.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not name or f"\ndef {name}(" in text


def test_every_row_of_its_tables_names_one() -> None:
    page = (ROOT / "docs/loader.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!guarantee|what |-)(.*) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`(?:tests|bench)/", row)] == []
