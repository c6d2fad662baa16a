"""What a process keeps from one read to the next is bounded and never of another revision."""

from __future__ import annotations

from pathlib import Path

from registry.domain import ConfigEntry, Mode, SchemaContent, SchemaId, StoredSchema
from registry.storage.database import Database, sqlite_url
from registry.storage.kept import SCHEMA_CHARS_EXTRA, KeptSchemas, KeptScopes
from registry.storage.statements import KEPT_SCOPES_MAX


def stored(row_key: int, chars: int) -> StoredSchema:
    return StoredSchema(SchemaId(row_key), SchemaContent("x" * chars), 0, row_key=row_key)


def test_schemas_longest_not_asked_for_go() -> None:
    kept = KeptSchemas(chars_max=3 * (100 + SCHEMA_CHARS_EXTRA))
    for row_key in (1, 2, 3):
        kept.keep(stored(row_key, 100))
    assert kept.get(1) is not None
    kept.keep(stored(4, 100))
    assert [kept.get(row_key) is not None for row_key in (1, 2, 3, 4)] == [True, False, True, True]
    kept.keep(stored(4, 100))
    assert kept.get(3) is not None
    kept.keep(stored(5, 10_000))  # more than all may be
    assert [kept.get(row_key) for row_key in (1, 3, 4, 5)] == [None] * 4


def test_scopes_of_an_older_revision_are_not_kept() -> None:
    kept = KeptScopes()
    newer = kept.at(7)
    assert kept.at(7) is newer
    assert kept.at(6) is not newer
    assert kept.at(7) is newer
    assert kept.at(8) is not newer


def test_what_is_kept_follows_every_change(tmp_path: Path) -> None:
    """Also where the tables are larger than what is kept of them."""
    url = sqlite_url(tmp_path / "registry.db")
    reader, writer = Database(url), Database(url)
    reader.upgrade()

    def put(scope: str, compatibility: str, mode: Mode) -> None:
        def write(repository):
            repository.bump_revision(of_settings=True)
            repository.put_config(scope, ConfigEntry(compatibility))
            repository.put_mode(scope, mode)

        writer.write(write)

    def seen(*scopes: str):
        return reader.read(lambda repository: (repository.configs(scopes), repository.modes(scopes)))

    assert seen("a", "z") == ({}, {})
    put("a", "FULL", Mode.READONLY)
    assert seen("a", "z") == ({"a": ConfigEntry("FULL")}, {"a": Mode.READONLY})
    for number in range(KEPT_SCOPES_MAX + 5):
        put(f"s{number}", "NONE", Mode.READWRITE)
    put("z", "FORWARD", Mode.IMPORT)
    put("a", "NONE", Mode.READWRITE)
    expected = {"a": ConfigEntry("NONE"), "z": ConfigEntry("FORWARD")}
    for _ in range(2):
        assert seen("a", "z", "b") == (expected, {"a": Mode.READWRITE, "z": Mode.IMPORT})
    reader.close()
    writer.close()
