"""docs/audit-format.md describes the rows and hashes that Headrace makes."""

from __future__ import annotations

import json
import re

import pytest

from headrace.audit.count import FINGERPRINT_MASK, message_hash
from headrace.audit.schema import AUDIT_SCHEMA, signed64
from support.checkout import ROOT

PAGE = (ROOT / "docs" / "audit-format.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (none|`[0-9a-f]+`|) ?\| (`[0-9a-f]+`|) ?\| `([0-9a-f]+)` \| (-?\d+) \|$", re.MULTILINE)
VECTORS = ROW.findall(PAGE)


def read_bytes(cell: str) -> bytes | None:
    return None if cell == "none" else bytes.fromhex(cell.strip("`"))


@pytest.mark.parametrize(("key", "value", "hash_hex", "signed"), VECTORS)
def test_hash_of_the_page(key: str, value: str, hash_hex: str, signed: str) -> None:
    found = message_hash(read_bytes(key), read_bytes(value) or b"")
    assert (f"{found:x}", signed64(found)) == (hash_hex, int(signed))


def test_fingerprint_of_two_messages_on_the_page() -> None:
    assert len(VECTORS) == 5
    total = sum(int(hash_hex, 16) for _, _, hash_hex, _ in VECTORS[-2:]) & FINGERPRINT_MASK
    assert f"together is {signed64(total)}." in PAGE


def test_page_describes_every_field() -> None:
    described = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("| field |") :]))
    assert {field["name"] for field in json.loads(AUDIT_SCHEMA)["fields"]} <= described
