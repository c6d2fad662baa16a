from __future__ import annotations

from headrace.registry.api.answer_cache import ENTRY_BYTES, Answer, AnswerCache
from headrace.registry.storage.footing import Footing
from headrace.registry.storage.history import Moment


def answer(size: int) -> Answer:
    return Answer(200, (), b"x" * size, footing=Footing(Moment(0, 1)))


def test_the_least_recently_used_answer_goes_first() -> None:
    cache = AnswerCache(bytes_max=2 * (ENTRY_BYTES + 10))
    kept = {key: answer(10) for key in "abc"}
    for key in "ab":
        cache.put(key, kept[key])
    assert cache.get("a") is kept["a"]
    cache.put("c", kept["c"])
    assert [cache.get(key) for key in "abc"] == [kept["a"], None, kept["c"]]


def test_what_is_replaced_or_dropped_gives_its_room_back() -> None:
    cache = AnswerCache(bytes_max=2 * (ENTRY_BYTES + 10))
    for _ in range(5):
        cache.put("a", answer(10))
    cache.put("b", answer(10))
    assert cache.get("a") is not None
    cache.drop("a")
    cache.drop("a")
    cache.put("c", answer(10))
    assert [cache.get(key) is not None for key in "abc"] == [False, True, True]


def test_an_answer_larger_than_all_is_not_kept() -> None:
    cache = AnswerCache(bytes_max=ENTRY_BYTES + 10)
    cache.put("a", answer(11))
    assert cache.get("a") is None
    cache.put("b", answer(10))
    assert cache.get("b") is not None
