from __future__ import annotations

from registry.api.answer_cache import AnswerCache


def test_a_body_is_made_once() -> None:
    cache = AnswerCache()
    made = []
    for _ in range(3):
        assert cache.get("key", lambda: made.append(1) or b"body") == b"body"  # type: ignore[func-returns-value]
    assert made == [1]
    cache.forget()
    assert cache.get("key", lambda: b"other") == b"other"


def test_a_body_read_before_a_change_is_not_kept() -> None:
    cache = AnswerCache()

    def read_and_be_overtaken() -> bytes:
        cache.forget()
        return b"old"

    assert cache.get("key", read_and_be_overtaken) == b"old"
    assert cache.get("key", lambda: b"new") == b"new"


def test_the_least_recently_used_body_goes_first() -> None:
    cache = AnswerCache(bytes_max=10)
    for key in "ab":
        cache.get(key, lambda: b"12345")
    cache.get("a", lambda: b"?")
    cache.get("c", lambda: b"12345")
    assert cache.get("a", lambda: b"again") == b"12345"
    assert cache.get("b", lambda: b"again") == b"again"
    assert cache.get("large", lambda: b"x" * 11) == b"x" * 11
    assert cache.get("large", lambda: b"y" * 11) == b"y" * 11
