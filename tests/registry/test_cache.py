"""The caches of a process are bounded and never return values of another revision."""

from __future__ import annotations

from pathlib import Path

from headrace.registry.domain import ConfigEntry, Mode
from headrace.registry.storage.cache import LruCache, ScopeCache
from headrace.registry.storage.database import Database, sqlite_url
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.statements import CACHED_SCOPES_MAX


def test_lru_cache_evicts_least_recently_used_by_count_and_size() -> None:
    cache = LruCache[str, int](10, 3)
    for number, key in enumerate("abc"):
        cache.put(key, number, 2)
    assert cache.get("a") == 0
    cache.put("d", 3, 2)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3], "the least recently used entry is evicted"
    cache.put("a", 4, 8)
    assert [cache.get(key) for key in "acd"] == [4, None, 3], "entries are evicted until the size fits"
    cache.put("e", 5, 11)
    assert [cache.get(key) for key in "acde"] == [None] * 4, "an entry above the size limit is not cached"
    cache.put("f", 6, 10)
    assert cache.get("f") == 6


def test_scopes_of_older_revision_are_not_cached() -> None:
    cache = ScopeCache()
    newer = cache.at(Revision(1, 7))
    assert cache.at(Revision(1, 7)) is newer
    assert cache.at(Revision(1, 6)) is not newer
    assert cache.at(Revision(1, 7)) is newer
    assert cache.at(Revision(1, 8)) is not newer
    # A revision number says nothing about another history.
    other = cache.at(Revision(2, 3))
    assert cache.at(Revision(2, 3)) is other
    assert cache.at(Revision(1, 8)) is not other


def test_cached_scopes_reflect_every_change(tmp_path: Path) -> None:
    """Also for tables that are larger than the cache."""
    url = sqlite_url(tmp_path / "registry.db")
    reader, writer = (Database(url, lease_s=0) for _ in range(2))
    reader.upgrade()

    def put(scope: str, compatibility: str, mode: Mode) -> None:
        def write(repository):
            repository.bump_revision(of_settings=True)
            repository.put_config(scope, ConfigEntry(compatibility))
            repository.put_mode(scope, mode)

        writer.write(write)

    def read_scopes(*scopes: str):
        return reader.read(lambda repository: (repository.configs(scopes), repository.modes(scopes)))

    assert read_scopes("a", "z") == ({}, {})
    put("a", "FULL", Mode.READONLY)
    assert read_scopes("a", "z") == ({"a": ConfigEntry("FULL")}, {"a": Mode.READONLY})
    for number in range(CACHED_SCOPES_MAX + 5):
        put(f"s{number}", "NONE", Mode.READWRITE)
    put("z", "FORWARD", Mode.IMPORT)
    put("a", "NONE", Mode.READWRITE)
    expected = {"a": ConfigEntry("NONE"), "z": ConfigEntry("FORWARD")}
    for _ in range(2):
        assert read_scopes("a", "z", "b") == (expected, {"a": Mode.READWRITE, "z": Mode.IMPORT})
    reader.close()
    writer.close()
