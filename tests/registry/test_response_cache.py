from __future__ import annotations

from headrace.registry.access.permissions import Permission, Permissions, SubjectPattern
from headrace.registry.access.users import Principal
from headrace.registry.api.hooks import UNRESTRICTED
from headrace.registry.api.response_cache import ENTRY_BYTES, AppResponse, ResponseCache
from headrace.registry.storage.dependencies import Dependencies
from headrace.registry.storage.revision import Revision

DEPENDENCIES = Dependencies(Revision(0, 1))


def response(size: int) -> AppResponse:
    return AppResponse(200, (), b"x" * size, principal=UNRESTRICTED, dependencies=DEPENDENCIES)


def principal(name: str, pattern: str) -> Principal:
    return Principal(name, Permissions(((Permission.READ, SubjectPattern.parse(pattern)),)))


def test_response_is_reused_for_equal_permissions_only() -> None:
    cache = ResponseCache()
    made = {
        pattern: AppResponse(200, (), b"x", principal=principal("first", pattern), dependencies=DEPENDENCIES)
        for pattern in "ab"
    }
    cache.put("request", made["a"])
    assert cache.get("request", principal("first", "a")) is made["a"]
    assert cache.get("request", principal("another", "a")) is made["a"]
    for other in (principal("first", "b"), principal("first", "*"), principal("", "b"), UNRESTRICTED):
        assert cache.get("request", other) is None
        cache.drop("request", other)
    cache.put("request", made["b"])
    for pattern in "ab":
        assert cache.get("request", principal("", pattern)) is made[pattern]


def test_response_without_principal_or_dependencies_is_not_cached() -> None:
    cache = ResponseCache()
    cache.put("request", AppResponse(200, (), b"x", dependencies=DEPENDENCIES))
    cache.put("request", AppResponse(200, (), b"x", principal=UNRESTRICTED))
    assert cache.get("request", UNRESTRICTED) is None


def test_cache_evicts_the_least_recently_used_response() -> None:
    cache = ResponseCache(bytes_max=2 * (ENTRY_BYTES + 10))
    responses = {key: response(10) for key in "abc"}
    for key in "ab":
        cache.put(key, responses[key])
    assert cache.get("a", UNRESTRICTED) is responses["a"]
    cache.put("c", responses["c"])
    assert [cache.get(key, UNRESTRICTED) for key in "abc"] == [responses["a"], None, responses["c"]]


def test_replaced_and_dropped_responses_free_their_bytes() -> None:
    cache = ResponseCache(bytes_max=2 * (ENTRY_BYTES + 10))
    for _ in range(5):
        cache.put("a", response(10))
    cache.put("b", response(10))
    assert cache.get("a", UNRESTRICTED) is not None
    cache.drop("a", UNRESTRICTED)
    cache.drop("a", UNRESTRICTED)
    cache.put("c", response(10))
    assert [cache.get(key, UNRESTRICTED) is not None for key in "abc"] == [False, True, True]


def test_response_larger_than_the_cache_is_not_cached() -> None:
    cache = ResponseCache(bytes_max=ENTRY_BYTES + 10)
    cache.put("a", response(11))
    assert cache.get("a", UNRESTRICTED) is None
    cache.put("b", response(10))
    assert cache.get("b", UNRESTRICTED) is not None
