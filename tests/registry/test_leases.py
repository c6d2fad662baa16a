"""When kept answers are given without a look, and which look decides."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

import pytest

from headrace.registry.api.leases import Leases
from headrace.registry.errors import StoreError
from headrace.registry.storage.footing import LEASE_S, Footing
from headrace.registry.storage.history import Moment
from headrace.registry.storage.looks import Look


class ScriptedLooks:
    """Looks at revisions that the test sets; each waits until it is let through."""

    def __init__(self) -> None:
        self.history = 0
        self.revision = 1
        self.subjects: dict[int, int] = {}
        self.asked: list[set[int]] = []
        self.is_away = False
        self.let_through = asyncio.Event()
        self.let_through.set()

    async def look(self, subject_ids: Collection[int]) -> Look:
        self.asked.append(set(subject_ids))
        seen = Look(Moment(self.history, self.revision), dict(self.subjects))
        await self.let_through.wait()
        if self.is_away:
            raise StoreError("away")
        return seen

    async def close(self) -> None:
        pass


def at(revision: int) -> Moment:
    return Moment(0, revision)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_a_look_holds_for_a_lease() -> None:
    async def test() -> None:
        looks, clock = ScriptedLooks(), Clock()
        leases = Leases(looks, clock)
        assert not leases.holds(Footing(at(1)))
        assert await leases.look(Footing(at(1)))
        clock.now += LEASE_S * 0.4
        assert leases.holds(Footing(at(1)))
        assert not leases.holds(Footing(at(0)))
        assert not leases.holds(Footing(at(2)))
        clock.now += LEASE_S * 0.7
        assert not leases.holds(Footing(at(1)))
        assert looks.asked == [set()]

    run(test())


def test_the_lease_counts_from_the_beginning_of_the_look() -> None:
    async def test() -> None:
        looks, clock = ScriptedLooks(), Clock()
        leases = Leases(looks, clock)
        looks.let_through.clear()
        looking = asyncio.create_task(leases.look(Footing(at(1))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += LEASE_S * 1.1
        looks.let_through.set()
        assert await looking
        assert not leases.holds(Footing(at(1)))

    run(test())


def test_a_lease_in_use_is_renewed_before_it_ends() -> None:
    async def test() -> None:
        looks, clock = ScriptedLooks(), Clock()
        leases = Leases(looks, clock)
        await leases.look(Footing(at(1)))
        for _ in range(10):
            clock.now += LEASE_S * 0.6
            assert leases.holds(Footing(at(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        looks.revision = 2
        clock.now += LEASE_S * 0.6
        assert leases.holds(Footing(at(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not leases.holds(Footing(at(1)))
        assert leases.holds(Footing(at(2)))

    run(test())


def test_answers_about_subjects_always_need_a_look() -> None:
    async def test() -> None:
        looks = ScriptedLooks()
        leases = Leases(looks, Clock())
        looks.subjects = {7: 3, 8: 1}
        footing = Footing(at(1), ((7, 3), (8, 1)))
        assert await leases.look(footing)
        assert not leases.holds(footing)
        looks.subjects[8] = 2
        assert await leases.look(footing) is False
        del looks.subjects[8]
        assert await leases.look(footing) is False

    run(test())


def test_requests_that_come_during_a_look_share_the_next() -> None:
    async def test() -> None:
        looks = ScriptedLooks()
        leases = Leases(looks, Clock())
        looks.subjects = {1: 1, 2: 1, 3: 1}
        looks.let_through.clear()
        first = asyncio.create_task(leases.look(Footing(at(1), ((1, 1),))))
        while not looks.asked:
            await asyncio.sleep(0)
        # What changes now may or may not be in the first look: only one that begins later can tell.
        looks.subjects[3] = 2
        later = [asyncio.create_task(leases.look(Footing(at(1), ((number, 1),)))) for number in (2, 3, 2)]
        await asyncio.sleep(0)
        looks.let_through.set()
        assert await first
        assert await asyncio.gather(*later) == [True, False, True]
        assert looks.asked == [{1}, {2, 3}]

    run(test())


@pytest.mark.parametrize("lookers", [1, 3])
def test_without_the_database_nothing_holds(lookers: int) -> None:
    async def test() -> None:
        looks = ScriptedLooks()
        leases = Leases(looks, Clock())
        looks.is_away = True
        assert await asyncio.gather(*(leases.look(Footing(at(1))) for _ in range(lookers))) == [None] * lookers
        assert not leases.holds(Footing(at(1)))
        looks.is_away = False
        assert await leases.look(Footing(at(1)))

    run(test())


def test_a_request_that_is_given_up_takes_no_other_along() -> None:
    async def test() -> None:
        looks = ScriptedLooks()
        leases = Leases(looks, Clock())
        looks.let_through.clear()
        given_up = asyncio.create_task(leases.look(Footing(at(1))))
        other = asyncio.create_task(leases.look(Footing(at(1))))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        looks.let_through.set()
        assert await other

    run(test())


def test_in_another_history_nothing_of_before_holds() -> None:
    async def test() -> None:
        looks, clock = ScriptedLooks(), Clock()
        leases = Leases(looks, clock)
        looks.subjects = {7: 3}
        assert await leases.look(Footing(at(1), ((7, 3),)))
        assert leases.holds(Footing(at(1)))
        looks.history = 5
        assert not await leases.look(Footing(at(1), ((7, 3),)))
        assert not leases.holds(Footing(at(1)))
        assert leases.holds(Footing(Moment(5, 1)))

    run(test())
