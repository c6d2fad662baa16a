"""The producer of all requests, with a producer that tests control in place of librdkafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.sender import REPLACE_S, OutgoingRecord, RecordSender, SendResult
from headrace.settings import GatewaySettings
from support.gateway_audit import NotedAudit

FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)
PURGED = KafkaError(KafkaError._PURGE_QUEUE)


class FakeMessage:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 7


class FakeProducer:
    """Acknowledges records in `poll`, unless it holds them. A record with the value `fatal` makes it fail for good."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.on_error = options["error_cb"]
        self.waiting: list[tuple[bytes, Callable[..., None]]] = []
        self.holds = False
        self.has_failed = False
        self.sent = 0
        self._called = threading.Event()

    def produce(self, topic: str, value: bytes, key: Any, partition: int, report: Any, *_: Any) -> None:
        if self.has_failed:
            raise KafkaException(KafkaError(KafkaError._FATAL, "failed", fatal=True))
        if value == b"full":
            raise BufferError
        self.waiting.append((value, report))
        self._called.set()

    def poll(self, timeout_s: float) -> None:
        self._called.wait(0.01)
        self._called.clear()
        if any(value == b"fatal" for value, _ in self.waiting) and not self.has_failed:
            self.has_failed = True
            self.on_error(FATAL)
        while self.waiting and not self.holds and not self.has_failed:
            self.waiting.pop(0)[1](None, FakeMessage(self.sent))
            self.sent += 1

    def purge(self) -> None:
        for _, report in self.waiting:
            report(PURGED, None)
        self.waiting.clear()

    def flush(self, timeout_s: float) -> None:
        return

    def __len__(self) -> int:
        return len(self.waiting)


def run(
    test: Callable[[RecordSender, list[FakeProducer]], Coroutine[Any, Any, None]], audit: NotedAudit | None = None
) -> GatewayMetrics:
    """Runs a test with a sender and the producers that it has created so far."""
    producers: list[FakeProducer] = []
    metrics, audit = GatewayMetrics(), audit or NotedAudit()

    def create(options: dict[str, Any]) -> Any:
        producers.append(FakeProducer(options))
        return producers[-1]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sender = RecordSender({}, GatewaySettings(), loop, metrics, audit, create)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(sender, producers), 30)
        finally:
            sender.close()

    asyncio.run(main())
    return metrics


def records(*values: bytes) -> list[OutgoingRecord]:
    return [OutgoingRecord(value) for value in values]


def codes(results: list[SendResult]) -> list[int | None]:
    return [None if one.error is None else one.error.code() for one in results]


def test_each_request_gets_the_results_of_its_records_in_their_order() -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        first, second = (
            await sender.start("t", records(b"a", b"full", b"b")),
            await sender.start("t", records(b"c")),
        )
        assert [one.offset for one in await first] == [0, -1, 1]
        assert codes(await first) == [None, KafkaError._QUEUE_FULL, None]
        assert await second == [SendResult(0, 2, 7)]
        assert await sender.send("t", records(b"full")) == [SendResult(error=KafkaError(KafkaError._QUEUE_FULL))]

    audit = NotedAudit()
    page = run(test, audit).page("")[0].decode()
    assert (audit.acknowledged, audit.failed) == ([b"a", b"b", b"c"], [b"full", b"full"])
    assert audit.sent == [b"a", b"full", b"b", b"c", b"full"]
    assert 'headrace_gateway_records_total{result="stored"} 3.0' in page
    assert 'headrace_gateway_records_total{result="_QUEUE_FULL"} 2.0' in page


def test_producer_that_failed_for_good_is_replaced_and_its_records_get_errors() -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        await asyncio.sleep(REPLACE_S)
        producers[0].holds = True
        lost = await sender.start("t", records(b"a", b"fatal"))
        assert codes(await lost) == [KafkaError._PURGE_QUEUE] * 2
        assert codes(await sender.send("t", records(b"b", b"c"))) == [None, None]
        assert len(producers) == 2

    run(test)


def test_record_for_a_failed_producer_goes_to_the_next_one() -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        await asyncio.sleep(REPLACE_S)
        producers[0].has_failed = True  # its thread has not noticed that yet
        assert codes(await sender.send("t", records(b"a", b"b"))) == [None, None]
        assert len(producers) == 2

    run(test)


def test_producers_that_fail_at_once_are_replaced_once_a_second() -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        deadline = time.monotonic() + 2.5 * REPLACE_S
        while time.monotonic() < deadline:
            producers[-1].has_failed = True
            await sender.send("t", records(b"a"))
            await asyncio.sleep(0.01)
        assert len(producers) <= 4

    run(test)


def test_failed_records_are_logged_by_error_but_not_each(caplog: pytest.LogCaptureFixture) -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        for _ in range(3):
            await sender.send("t", records(b"a", b"full", b"full"))

    run(test)
    lines = [one.getMessage() for one in caplog.records if "records_failed" in one.getMessage()]
    assert lines == ["records_failed error=_QUEUE_FULL records=2"]


def test_requests_of_many_coroutines_share_a_producer_and_all_end() -> None:
    async def test(sender: RecordSender, producers: list[FakeProducer]) -> None:
        found = await asyncio.gather(*(sender.send("t", records(b"a", b"full", b"b")) for _ in range(500)))
        assert [codes(one) for one in found] == [[None, KafkaError._QUEUE_FULL, None]] * 500
        assert len(producers) == 1  # which batches the records of all requests

    run(test)
