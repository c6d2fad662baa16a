"""Lock files: what is no lock file is refused with its reason."""

from __future__ import annotations

import pytest

from headrace.compat.checking.lock import InvalidLock, LockEntry, lock_text, parse_lock


def test_parsed_lock_has_the_entries_in_order_of_files() -> None:
    entries = [LockEntry(file, "s-value", 1, 7, "ab") for file in ("b.avsc", "a.avsc")]
    assert parse_lock(lock_text(entries)) == tuple(reversed(entries))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"format": 2, "schemas": []}',
        '{"format": 1}',
        '{"format": 1, "schemas": [{"file": "a"}]}',
        '{"format": 1, "schemas": [{"file": ["a"], "subject": "s", "version": 1, "id": 1, "sha256": ""}]}',
        '{"format": 1, "schemas": [{"file": "a", "subject": "s", "version": true, "id": 1, "sha256": ""}]}',
    ],
    ids=[
        "empty",
        "nested too deep",
        "no object",
        "newer",
        "without schemas",
        "incomplete entry",
        "list as file",
        "boolean as version",
    ],
)
def test_invalid_lock_is_refused(text: str) -> None:
    with pytest.raises(InvalidLock):
        parse_lock(text)
