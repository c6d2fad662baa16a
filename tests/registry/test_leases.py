"""Validation of cached responses: leases, reads of revisions, and which read decides."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

import pytest

from headrace.registry.api.leases import Leases
from headrace.registry.errors import StoreError
from headrace.registry.storage.dependencies import LEASE_S, Dependencies
from headrace.registry.storage.revision import Revision
from headrace.registry.storage.revision_check import Revisions


class ScriptedRevisionReader:
    """Returns revisions that the test sets. Each read waits for `may_finish`."""

    def __init__(self) -> None:
        self.history = 0
        self.revision = 1
        self.subjects: dict[int, int] = {}
        self.reads: list[set[int]] = []
        self.is_down = False
        self.may_finish = asyncio.Event()
        self.may_finish.set()

    async def read(self, subject_ids: Collection[int]) -> Revisions:
        self.reads.append(set(subject_ids))
        revisions = Revisions(Revision(self.history, self.revision), dict(self.subjects))
        await self.may_finish.wait()
        if self.is_down:
            raise StoreError("down")
        return revisions

    async def close(self) -> None:
        pass


def at(revision: int) -> Revision:
    return Revision(0, revision)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_check_starts_a_lease() -> None:
    async def test() -> None:
        reader, clock = ScriptedRevisionReader(), Clock()
        leases = Leases(reader, clock)
        assert not leases.is_valid(Dependencies(at(1)))
        assert await leases.check(Dependencies(at(1)))
        clock.now += LEASE_S * 0.4
        assert leases.is_valid(Dependencies(at(1)))
        assert not leases.is_valid(Dependencies(at(0)))
        assert not leases.is_valid(Dependencies(at(2)))
        clock.now += LEASE_S * 0.7
        assert not leases.is_valid(Dependencies(at(1)))
        assert reader.reads == [set()]

    run(test())


def test_lease_counts_from_the_start_of_the_read() -> None:
    async def test() -> None:
        reader, clock = ScriptedRevisionReader(), Clock()
        leases = Leases(reader, clock)
        reader.may_finish.clear()
        check = asyncio.create_task(leases.check(Dependencies(at(1))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += LEASE_S * 1.1
        reader.may_finish.set()
        assert await check
        assert not leases.is_valid(Dependencies(at(1)))

    run(test())


def test_used_lease_is_renewed_before_it_ends() -> None:
    async def test() -> None:
        reader, clock = ScriptedRevisionReader(), Clock()
        leases = Leases(reader, clock)
        await leases.check(Dependencies(at(1)))
        for _ in range(10):
            clock.now += LEASE_S * 0.6
            assert leases.is_valid(Dependencies(at(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        reader.revision = 2
        clock.now += LEASE_S * 0.6
        assert leases.is_valid(Dependencies(at(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not leases.is_valid(Dependencies(at(1)))
        assert leases.is_valid(Dependencies(at(2)))

    run(test())


def test_dependencies_on_subjects_always_need_a_read() -> None:
    async def test() -> None:
        reader = ScriptedRevisionReader()
        leases = Leases(reader, Clock())
        reader.subjects = {7: 3, 8: 1}
        dependencies = Dependencies(at(1), ((7, 3), (8, 1)))
        assert await leases.check(dependencies)
        assert not leases.is_valid(dependencies)
        reader.subjects[8] = 2
        assert await leases.check(dependencies) is False
        del reader.subjects[8]
        assert await leases.check(dependencies) is False

    run(test())


def test_requests_during_a_read_share_the_next_one() -> None:
    async def test() -> None:
        reader = ScriptedRevisionReader()
        leases = Leases(reader, Clock())
        reader.subjects = {1: 1, 2: 1, 3: 1}
        reader.may_finish.clear()
        first = asyncio.create_task(leases.check(Dependencies(at(1), ((1, 1),))))
        while not reader.reads:
            await asyncio.sleep(0)
        # The first read may miss this change, so the later requests need a read that starts now.
        reader.subjects[3] = 2
        later = [asyncio.create_task(leases.check(Dependencies(at(1), ((number, 1),)))) for number in (2, 3, 2)]
        await asyncio.sleep(0)
        reader.may_finish.set()
        assert await first
        assert await asyncio.gather(*later) == [True, False, True]
        assert reader.reads == [{1}, {2, 3}]

    run(test())


@pytest.mark.parametrize("requests", [1, 3])
def test_check_returns_none_while_the_database_is_down(requests: int) -> None:
    async def test() -> None:
        reader = ScriptedRevisionReader()
        leases = Leases(reader, Clock())
        reader.is_down = True
        assert await asyncio.gather(*(leases.check(Dependencies(at(1))) for _ in range(requests))) == [None] * requests
        assert not leases.is_valid(Dependencies(at(1)))
        reader.is_down = False
        assert await leases.check(Dependencies(at(1)))

    run(test())


def test_cancelled_check_does_not_cancel_others() -> None:
    async def test() -> None:
        reader = ScriptedRevisionReader()
        leases = Leases(reader, Clock())
        reader.may_finish.clear()
        cancelled = asyncio.create_task(leases.check(Dependencies(at(1))))
        other = asyncio.create_task(leases.check(Dependencies(at(1))))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        reader.may_finish.set()
        assert await other

    run(test())


def test_new_history_invalidates_all_responses() -> None:
    async def test() -> None:
        reader, clock = ScriptedRevisionReader(), Clock()
        leases = Leases(reader, clock)
        reader.subjects = {7: 3}
        assert await leases.check(Dependencies(at(1), ((7, 3),)))
        assert leases.is_valid(Dependencies(at(1)))
        reader.history = 5
        assert not await leases.check(Dependencies(at(1), ((7, 3),)))
        assert not leases.is_valid(Dependencies(at(1)))
        assert leases.is_valid(Dependencies(Revision(5, 1)))

    run(test())
