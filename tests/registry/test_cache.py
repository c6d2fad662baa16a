"""What a process keeps from one read to the next is bounded and never of another revision."""

from __future__ import annotations

from pathlib import Path

from headrace.registry.domain import ConfigEntry, Mode
from headrace.registry.storage.cache import LruCache, ScopeCache
from headrace.registry.storage.database import Database, sqlite_url
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.statements import CACHED_SCOPES_MAX


def test_what_was_not_used_longest_goes_within_bounds_of_number_and_size() -> None:
    kept = LruCache[str, int](10, 3)
    for number, key in enumerate("abc"):
        kept.put(key, number, 2)
    assert kept.get("a") == 0
    kept.put("d", 3, 2)
    assert [kept.get(key) for key in "abcd"] == [0, None, 2, 3], "the one that was used longest ago went"
    kept.put("a", 4, 8)
    assert [kept.get(key) for key in "acd"] == [4, None, 3], "as many as are needed for the size went"
    kept.put("e", 5, 11)
    assert [kept.get(key) for key in "acde"] == [None] * 4, "what is too large alone is not kept"
    kept.put("f", 6, 10)
    assert kept.get("f") == 6


def test_scopes_of_an_older_revision_are_not_kept() -> None:
    kept = ScopeCache()
    newer = kept.at(Revision(1, 7))
    assert kept.at(Revision(1, 7)) is newer
    assert kept.at(Revision(1, 6)) is not newer
    assert kept.at(Revision(1, 7)) is newer
    assert kept.at(Revision(1, 8)) is not newer
    # In another history the revision says nothing of the one before.
    other = kept.at(Revision(2, 3))
    assert kept.at(Revision(2, 3)) is other
    assert kept.at(Revision(1, 8)) is not other


def test_what_is_kept_follows_every_change(tmp_path: Path) -> None:
    """Also where the tables are larger than what is kept of them."""
    url = sqlite_url(tmp_path / "registry.db")
    reader, writer = (Database(url, lease_s=0) for _ in range(2))
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
    for number in range(CACHED_SCOPES_MAX + 5):
        put(f"s{number}", "NONE", Mode.READWRITE)
    put("z", "FORWARD", Mode.IMPORT)
    put("a", "NONE", Mode.READWRITE)
    expected = {"a": ConfigEntry("NONE"), "z": ConfigEntry("FORWARD")}
    for _ in range(2):
        assert seen("a", "z", "b") == (expected, {"a": Mode.READWRITE, "z": Mode.IMPORT})
    reader.close()
    writer.close()
