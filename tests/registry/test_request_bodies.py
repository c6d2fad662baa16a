"""Receiving bodies: complete, in parts, too large, stalled, truncated, and too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headrace.registry.api import request_bodies
from headrace.registry.api.request_bodies import Body, BodyHeaders, BodyRefused, RequestBodies

BYTES_MAX = 100
END = {"type": "http.disconnect"}


def part(content: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def received(messages: Iterable[Any], headers: list[tuple[bytes, bytes]] | None = None) -> tuple[Body, int]:
    """The body from these messages, and the number of received messages. None is a message that never arrives."""
    waiting = iter(messages)
    count = 0

    async def receive() -> Any:
        nonlocal count
        message = next(waiting)
        if message is None:
            await asyncio.Event().wait()
        count += 1
        return message

    async def run() -> Body:
        bodies = RequestBodies(BYTES_MAX)
        body = await bodies.receive(BodyHeaders.of({"headers": headers or []}), receive)
        bodies.release(body)
        if body.has_unread:
            await bodies.discard_rest(receive)
        assert bodies._held_bytes == 0
        return body

    return asyncio.run(run()), count


def test_body_arrives_at_once_or_in_parts() -> None:
    assert received([part(b"abc")]) == (Body(b"abc", 3), 1)
    assert received([part(b"")]) == (Body(b"", 0), 1)
    assert received([part(b"ab", more=True), part(b"", more=True), part(b"c")]) == (Body(b"abc", 3), 3)
    assert received([part(b"x" * BYTES_MAX)]) == (Body(b"x" * BYTES_MAX, BYTES_MAX), 1)


def length(number: int) -> tuple[bytes, bytes]:
    return b"content-length", str(number).encode()


def test_complete_body_needs_no_further_message() -> None:
    assert received([part(b"abc", more=True), None], [length(3)]) == (Body(b"abc", 3), 1)
    assert received([part(b"", more=True), None], [length(0)]) == (Body(b"", 0), 1)
    assert received([part(b"ab", more=True), part(b"c", more=True), part(b"")], [length(3)]) == (Body(b"abc", 3), 3)
    # With chunked encoding the length is unknown until the last part.
    chunked = [length(3), (b"transfer-encoding", b"chunked")]
    assert received([part(b"abc", more=True), part(b"d")], chunked) == (Body(b"abcd", 4), 2)


def test_body_that_is_too_large_is_discarded() -> None:
    large = [part(b"x" * 60, more=True)] * 9 + [part(b"x" * 60)]
    assert received(large, [length(600)]) == (Body(b"", 600, has_unread=True), 10)
    assert received(large) == (Body(b"", 120, has_unread=True), 10)
    assert received([part(b"x" * 101)]) == (Body(b"", 101), 1)
    # A client that expects 100-continue gets the response before it sends the body.
    assert received([], [length(600), (b"expect", b"100-continue")]) == (Body(b"", 600), 0)


def test_discarded_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "DISCARDED_BYTES_MAX", 1000)
    endless = [part(b"x" * 60, more=True)] * 1000
    assert received(endless) == (Body(b"", 120, has_unread=True), 19)


def test_number_of_parts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "PARTS_MAX", 10)
    crumbs = [part(b"x", more=True)] * 1000
    with pytest.raises(BodyRefused) as refusal:
        received(crumbs)
    assert refusal.value.status == 413
    assert received(crumbs, [length(600)]) == (Body(b"", 600, has_unread=True), 10)


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([part(b"a", more=True), None], 408),
        ([None], 408),
        ([part(b"a", more=True), END], 400),
        ([END], 400),
    ],
)
def test_stalled_or_truncated_body_is_refused(
    monkeypatch: pytest.MonkeyPatch, messages: list[Any], status: int
) -> None:
    monkeypatch.setattr(request_bodies, "STALLED_S", 0.01)
    with pytest.raises(BodyRefused) as refusal:
        received(messages)
    assert refusal.value.status == status


def test_slow_body_is_refused_with_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_S", 0.05)

    async def drip() -> Any:
        await asyncio.sleep(0.005)
        return part(b"", more=True)

    with pytest.raises(BodyRefused) as refusal:
        asyncio.run(RequestBodies(BYTES_MAX).receive(BodyHeaders(None, expects_continue=False), drip))
    assert refusal.value.status == 408


def test_bodies_in_memory_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "HELD_BYTES_MAX", 150)

    def sends(*messages: Any) -> Callable[[], Any]:
        waiting = iter(messages)

        async def receive() -> Any:
            return next(waiting)

        return receive

    async def run() -> None:
        bodies = RequestBodies(BYTES_MAX)
        headers = BodyHeaders(None, expects_continue=False)
        first = await bodies.receive(headers, sends(part(b"x" * 90)))
        for refused in (sends(part(b"x" * 90)), sends(part(b"x" * 50, more=True), part(b"x" * 40))):
            with pytest.raises(BodyRefused) as refusal:
                await bodies.receive(headers, refused)
            assert refusal.value.status == 503
        bodies.release(first)
        second = await bodies.receive(headers, sends(part(b"x" * 50, more=True), part(b"x" * 40)))
        assert second.length == 90

    asyncio.run(run())
