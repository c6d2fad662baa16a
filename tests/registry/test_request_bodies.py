"""Receiving bodies: whole, in parts, too large, stalled, cut off, and too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headrace.registry.api import request_bodies
from headrace.registry.api.request_bodies import Announced, Body, BodyRefused, RequestBodies

BYTES_MAX = 100
END = {"type": "http.disconnect"}


def part(content: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def received(messages: Iterable[Any], headers: list[tuple[bytes, bytes]] | None = None) -> tuple[Body, int]:
    """What a body of these messages becomes, and how many of them were taken; None never comes."""
    waiting = iter(messages)
    taken = 0

    async def receive() -> Any:
        nonlocal taken
        message = next(waiting)
        if message is None:
            await asyncio.Event().wait()
        taken += 1
        return message

    async def run() -> Body:
        bodies = RequestBodies(BYTES_MAX)
        body = await bodies.receive(Announced.of({"headers": headers or []}), receive)
        bodies.release(body)
        if body.has_rest:
            await bodies.let_pass(receive)
        assert bodies._held_bytes == 0
        return body

    return asyncio.run(run()), taken


def test_whole_and_in_parts() -> None:
    assert received([part(b"abc")]) == (Body(b"abc", 3), 1)
    assert received([part(b"")]) == (Body(b"", 0), 1)
    assert received([part(b"ab", more=True), part(b"", more=True), part(b"c")]) == (Body(b"abc", 3), 3)
    assert received([part(b"x" * BYTES_MAX)]) == (Body(b"x" * BYTES_MAX, BYTES_MAX), 1)


def length(number: int) -> tuple[bytes, bytes]:
    return b"content-length", str(number).encode()


def test_what_came_whole_is_not_waited_for_any_more() -> None:
    assert received([part(b"abc", more=True), None], [length(3)]) == (Body(b"abc", 3), 1)
    assert received([part(b"", more=True), None], [length(0)]) == (Body(b"", 0), 1)
    assert received([part(b"ab", more=True), part(b"c", more=True), part(b"")], [length(3)]) == (Body(b"abc", 3), 3)
    # In chunks there is no telling.
    in_chunks = [length(3), (b"transfer-encoding", b"chunked")]
    assert received([part(b"abc", more=True), part(b"d")], in_chunks) == (Body(b"abcd", 4), 2)


def test_of_what_is_too_large_only_the_length_is_kept_and_the_rest_is_let_pass() -> None:
    large = [part(b"x" * 60, more=True)] * 9 + [part(b"x" * 60)]
    assert received(large, [length(600)]) == (Body(b"", 600, has_rest=True), 10)
    assert received(large) == (Body(b"", 120, has_rest=True), 10)
    assert received([part(b"x" * 101)]) == (Body(b"", 101), 1)
    # Who asks first is told before it sends.
    assert received([], [length(600), (b"expect", b"100-continue")]) == (Body(b"", 600), 0)


def test_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "DISCARDED_BYTES_MAX", 1000)
    endless = [part(b"x" * 60, more=True)] * 1000
    assert received(endless) == (Body(b"", 120, has_rest=True), 19)


def test_not_in_parts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "PARTS_MAX", 10)
    crumbs = [part(b"x", more=True)] * 1000
    with pytest.raises(BodyRefused) as refusal:
        received(crumbs)
    assert refusal.value.status == 413
    assert received(crumbs, [length(600)]) == (Body(b"", 600, has_rest=True), 10)


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([part(b"a", more=True), None], 408),
        ([None], 408),
        ([part(b"a", more=True), END], 400),
        ([END], 400),
    ],
)
def test_what_does_not_come(monkeypatch: pytest.MonkeyPatch, messages: list[Any], status: int) -> None:
    monkeypatch.setattr(request_bodies, "STALLED_S", 0.01)
    with pytest.raises(BodyRefused) as refusal:
        received(messages)
    assert refusal.value.status == status


def test_a_body_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_S", 0.05)

    async def drip() -> Any:
        await asyncio.sleep(0.005)
        return part(b"", more=True)

    with pytest.raises(BodyRefused) as refusal:
        asyncio.run(RequestBodies(BYTES_MAX).receive(Announced(None, waits=False), drip))
    assert refusal.value.status == 408


def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "HELD_BYTES_MAX", 150)

    def sends(*messages: Any) -> Callable[[], Any]:
        waiting = iter(messages)

        async def receive() -> Any:
            return next(waiting)

        return receive

    async def run() -> None:
        bodies = RequestBodies(BYTES_MAX)
        announced = Announced(None, waits=False)
        first = await bodies.receive(announced, sends(part(b"x" * 90)))
        for refused in (sends(part(b"x" * 90)), sends(part(b"x" * 50, more=True), part(b"x" * 40))):
            with pytest.raises(BodyRefused) as refusal:
                await bodies.receive(announced, refused)
            assert refusal.value.status == 503
        bodies.release(first)
        second = await bodies.receive(announced, sends(part(b"x" * 50, more=True), part(b"x" * 40)))
        assert second.length == 90

    asyncio.run(run())
