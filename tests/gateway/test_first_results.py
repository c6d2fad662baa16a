"""Results of repeated requests."""

from __future__ import annotations

import asyncio

import pytest

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.first_results import ENTRY_BYTES, KEPT_S, FirstResults, ResultKey

KEY: ResultKey = ("user", "/topics/t", "k")


class Producing:
    """Processes requests: counts them, and returns the count, or raises an error."""

    def __init__(self) -> None:
        self.count = 0
        self.error: GatewayError | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> bytes:
        self.count += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return str(self.count).encode()


def test_repeated_request_gets_the_first_result_until_it_expires() -> None:
    async def run() -> None:
        now, produce = 0.0, Producing()
        results = FirstResults(lambda: now)
        assert await results.first(KEY, b"a", produce) == (b"1", False)
        now = KEPT_S - 1
        assert await results.first(KEY, b"a", produce) == (b"1", True)
        now = KEPT_S
        assert await results.first(KEY, b"a", produce) == (b"2", False)

    asyncio.run(run())


def test_other_user_path_or_key_is_another_request() -> None:
    async def run() -> None:
        produce = Producing()
        results = FirstResults()
        keys = (KEY, ("other", *KEY[1:]), (KEY[0], "/topics/u", KEY[2]), (*KEY[:2], "l"))
        assert [await results.first(key, b"a", produce) for key in keys] == [
            (str(number).encode(), False) for number in range(1, 5)
        ]

    asyncio.run(run())


def test_key_of_another_body_is_refused() -> None:
    async def run() -> None:
        produce = Producing()
        results = FirstResults()
        await results.first(KEY, b"a", produce)
        with pytest.raises(GatewayError) as refused:
            await results.first(KEY, b"b", produce)
        assert (refused.value.kind, produce.count) == (Kind.MALFORMED, 1)

    asyncio.run(run())


def test_requests_wait_for_the_first_one_even_if_its_client_disconnects() -> None:
    async def run() -> None:
        produce = Producing()
        produce.may_end.clear()
        results = FirstResults()
        first = asyncio.ensure_future(results.first(KEY, b"a", produce))
        others = [asyncio.ensure_future(results.first(KEY, b"a", produce)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        produce.may_end.set()
        assert await asyncio.gather(*others) == [(b"1", True)] * 3

    asyncio.run(run())


def test_refused_request_does_not_count() -> None:
    async def run() -> None:
        produce = Producing()
        produce.error = GatewayError(Kind.KAFKA_UNAVAILABLE, "away")
        results = FirstResults()
        with pytest.raises(GatewayError):
            await results.first(KEY, b"a", produce)
        produce.error = None
        assert await results.first(KEY, b"b", produce) == (b"2", False)

    asyncio.run(run())


def test_oldest_results_are_dropped_when_all_take_too_much_memory() -> None:
    async def run() -> None:
        produce = Producing()
        results = FirstResults(bytes_max=4 * (ENTRY_BYTES + 2))
        keys = [("", "", str(number)) for number in range(6)]
        for key in keys:
            await results.first(key, b"a", produce)
        assert [(await results.first(key, b"a", produce))[1] for key in keys[2:]] == [True] * 4
        assert (await results.first(keys[0], b"a", produce))[1] is False

    asyncio.run(run())
