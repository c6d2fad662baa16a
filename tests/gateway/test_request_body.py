"""Bodies of requests within limits of time, size and memory, and the rate of bytes that a client may send."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request

from headrace.gateway import json_stream
from headrace.gateway.access import CALLER_KEY, Caller
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.request_body import SWEEP_S, BodyBudget, ByteRate, body_of, json_of, parse_names, read_json
from headrace.registry.access.permissions import ALL_PERMISSIONS
from headrace.registry.access.users import Principal
from headrace.settings import LoaderSettings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_client_waits_until_its_bytes_are_made_up_for() -> None:
    clock = Clock()
    rate = ByteRate(100, clock)
    rate.count("a", 100)
    rate.check("a")
    rate.count("a", 300)
    with pytest.raises(GatewayError) as refused:
        rate.check("a")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 3)
    rate.check("b")
    clock.now += 2.5
    assert rate.wait_s("a") == 0.5
    with pytest.raises(GatewayError) as refused:
        rate.check("a")
    assert refused.value.retry_after_s == 1
    clock.now += 0.5
    rate.check("a")
    clock.now += 10
    rate.count("a", 150)  # unused seconds do not add up
    assert rate.wait_s("a") == 0.5


def test_steady_client_below_the_rate_never_waits() -> None:
    clock = Clock()
    rate = ByteRate(100, clock)
    for _ in range(int(3 * SWEEP_S)):
        rate.check("a")
        rate.count("a", 100)
        clock.now += 1
    assert rate.wait_s("a") == 0


def test_sweep_keeps_clients_that_must_wait_and_forgets_others() -> None:
    clock = Clock()
    rate = ByteRate(1, clock)
    rate.count("heavy", 1000)
    rate.count("light", 1)
    clock.now += SWEEP_S + 1
    rate.count("other", 1)
    assert rate.wait_s("heavy") == 1000 - SWEEP_S - 2
    assert rate._paid_at.keys() == {"heavy", "other"}


def test_rate_of_zero_is_no_limit() -> None:
    rate = ByteRate(0)
    rate.count("a", 2**60)
    assert rate.wait_s("a") == 0


def budget(request: int = 100, total: int = 1000, client: int = 1000, rate: int = 0) -> BodyBudget:
    return BodyBudget(request, total, client, ByteRate(rate, Clock()))


def request_of(chunks: Sequence[bytes], user: str = "alice", is_complete: bool = True, **headers: str) -> Request:
    """A request whose body arrives in chunks; the next part of an incomplete one never comes."""
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if is_complete:
        waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    scope = {
        "type": "http",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        CALLER_KEY: Caller(Principal(user, ALL_PERMISSIONS), "127.0.0.1", LoaderSettings()),
    }
    return Request(scope, receive)


async def read(request: Request, limits: BodyBudget, **options: Any) -> bytes:
    async with body_of(request, limits, **options) as reader:
        return await reader.read()


def refused(request: Request, limits: BodyBudget, **options: Any) -> Kind:
    with pytest.raises(GatewayError) as error:
        asyncio.run(read(request, limits, **options))
    assert (limits.in_use, limits.of_clients) == (0, {})
    return error.value.kind


def test_memory_of_a_client_and_of_all_clients_is_limited_to_the_byte() -> None:
    limits = budget(total=100, client=60)
    limits.take("a", 60)
    for client, size in (("a", 1), ("b", 41)):
        with pytest.raises(GatewayError) as error:
            limits.take(client, size)
        assert (error.value.kind, error.value.retry_after_s) == (Kind.TOO_MANY_REQUESTS, 1)
    limits.take("b", 40)
    limits.release("a", 20)
    assert (limits.in_use, limits.of_clients) == (80, {"a": 40, "b": 40})
    limits.take("a", 20)
    limits.release("a", 60)
    limits.release("b", 40)
    assert (limits.in_use, limits.of_clients) == (0, {})


def test_body_has_the_permitted_size_at_most() -> None:
    limits = budget()
    assert asyncio.run(read(request_of([b"a" * 60, b"b" * 40]), limits)) == b"a" * 60 + b"b" * 40
    assert asyncio.run(read(request_of([b"a" * 100], content_length="100"), limits)) == b"a" * 100
    assert asyncio.run(read(request_of([b"a"], content_length="\u00b2"), limits)) == b"a"
    assert refused(request_of([b"a" * 60, b"b" * 41], is_complete=False), limits) is Kind.BODY_TOO_LARGE
    assert refused(request_of([], is_complete=False, content_length="101"), limits) is Kind.BODY_TOO_LARGE
    bomb = gzip.compress(b"a" * 101)
    assert refused(request_of([bomb], is_complete=False, content_encoding="gzip"), limits) is Kind.BODY_TOO_LARGE


def test_body_takes_memory_of_its_client_until_its_end() -> None:
    limits = budget(client=150)

    async def run() -> None:
        async with body_of(request_of([b"a" * 100]), limits) as reader:
            await reader.read()
            assert (limits.in_use, limits.of_clients) == (100, {"user alice": 100})
            with pytest.raises(GatewayError) as error:
                await read(request_of([b"a" * 51]), limits)
            assert error.value.kind is Kind.TOO_MANY_REQUESTS
            assert await read(request_of([b"a" * 51], user="bob"), limits) == b"a" * 51
            reader.release(40)
            assert await read(request_of([b"a" * 51]), limits) == b"a" * 51

    asyncio.run(run())
    assert (limits.in_use, limits.of_clients) == (0, {})


def test_incomplete_damaged_and_unknown_bodies_are_refused() -> None:
    limits = budget()
    assert refused(request_of([b"{"], is_complete=False), limits, idle_s=0.01) is Kind.BODY_TIMEOUT
    cut = gzip.compress(b"{}")[:-1]
    assert refused(request_of([cut], content_encoding="gzip"), limits) is Kind.BAD_REQUEST
    assert refused(request_of([b"{}"], content_encoding="br"), limits) is Kind.UNSUPPORTED_MEDIA_TYPE
    assert asyncio.run(read(request_of([gzip.compress(b"{}")], content_encoding=" GZIP "), limits)) == b"{}"

    async def parse(body: bytes) -> Any:
        async with body_of(request_of([body]), limits) as reader:
            return await read_json(reader)

    assert asyncio.run(parse(b'{"a":1}')) == {"a": 1}
    with pytest.raises(GatewayError):
        asyncio.run(parse(b"{"))


def test_json_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (b"{", b'{"name": "\\ud800"}'):
        with pytest.raises(GatewayError) as error:
            parse_names(body)
        assert error.value.kind is Kind.BAD_REQUEST
    monkeypatch.setattr(json_stream, "ITEMS_MAX", 1)
    with pytest.raises(GatewayError) as error:
        asyncio.run(json_of(b'{"records": [1, 2]}' + b" " * json_stream.AT_ONCE_BYTES_MAX))
    assert error.value.kind is Kind.BODY_TOO_LARGE


def test_only_bodies_with_records_count_for_the_rate() -> None:
    limits = budget(rate=10)
    for _ in range(3):
        asyncio.run(read(request_of([b"a" * 50]), limits))
    asyncio.run(read(request_of([gzip.compress(b"a" * 50)], content_encoding="gzip"), limits, has_records=True))
    assert limits.rate.wait_s("user alice") == 4  # 50 bytes after decompression, less a second's 10
    assert refused(request_of([], is_complete=False), limits, has_records=True) is Kind.TOO_MANY_REQUESTS
    asyncio.run(read(request_of([b"a"], user="bob"), limits, has_records=True))
