from __future__ import annotations

from headrace.registry.access.rights import Right, Rights, SubjectPattern
from headrace.registry.access.users import Principal
from headrace.registry.api.answer_cache import ENTRY_BYTES, Answer, AnswerCache
from headrace.registry.api.hooks import ANYBODY
from headrace.registry.storage.footing import Footing
from headrace.registry.storage.history import Moment

FOOTING = Footing(Moment(0, 1))


def answer(size: int) -> Answer:
    return Answer(200, (), b"x" * size, principal=ANYBODY, footing=FOOTING)


def principal(name: str, pattern: str) -> Principal:
    return Principal(name, Rights(((Right.READ, SubjectPattern.parse(pattern)),)))


def test_an_answer_is_given_to_those_alone_who_may_do_what_its_first_reader_may() -> None:
    cache = AnswerCache()
    made = {pattern: Answer(200, (), b"x", principal=principal("first", pattern), footing=FOOTING) for pattern in "ab"}
    cache.put("question", made["a"])
    assert cache.get("question", principal("first", "a")) is made["a"]
    assert cache.get("question", principal("another", "a")) is made["a"]
    for other in (principal("first", "b"), principal("first", "*"), principal("", "b"), ANYBODY):
        assert cache.get("question", other) is None
        cache.drop("question", other)
    cache.put("question", made["b"])
    for pattern in "ab":
        assert cache.get("question", principal("", pattern)) is made[pattern]


def test_an_answer_to_nobody_known_is_not_kept() -> None:
    cache = AnswerCache()
    cache.put("question", Answer(200, (), b"x", footing=FOOTING))
    cache.put("question", Answer(200, (), b"x", principal=ANYBODY))
    assert cache.get("question", ANYBODY) is None


def test_the_least_recently_used_answer_goes_first() -> None:
    cache = AnswerCache(bytes_max=2 * (ENTRY_BYTES + 10))
    kept = {key: answer(10) for key in "abc"}
    for key in "ab":
        cache.put(key, kept[key])
    assert cache.get("a", ANYBODY) is kept["a"]
    cache.put("c", kept["c"])
    assert [cache.get(key, ANYBODY) for key in "abc"] == [kept["a"], None, kept["c"]]


def test_what_is_replaced_or_dropped_gives_its_room_back() -> None:
    cache = AnswerCache(bytes_max=2 * (ENTRY_BYTES + 10))
    for _ in range(5):
        cache.put("a", answer(10))
    cache.put("b", answer(10))
    assert cache.get("a", ANYBODY) is not None
    cache.drop("a", ANYBODY)
    cache.drop("a", ANYBODY)
    cache.put("c", answer(10))
    assert [cache.get(key, ANYBODY) is not None for key in "abc"] == [False, True, True]


def test_an_answer_larger_than_all_is_not_kept() -> None:
    cache = AnswerCache(bytes_max=ENTRY_BYTES + 10)
    cache.put("a", answer(11))
    assert cache.get("a", ANYBODY) is None
    cache.put("b", answer(10))
    assert cache.get("b", ANYBODY) is not None
