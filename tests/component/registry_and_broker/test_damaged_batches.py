"""Consumers of a log with a damaged batch, and of brokers that fail: no message of the batch is returned, and iteration
does not end as if all messages were read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from headrace import (
    AsyncConsumer,
    Consumer,
    DamagedBatch,
    KafkaSettings,
    Producer,
    RegistrySettings,
    Settings,
    SourceUnavailable,
)
from headrace.clients import log_check, read_watch
from headrace.kafka_wire.record_batch import CRC_AT, CRC_FROM, HEADER_BYTES, split_batches
from support.broker.damaging_proxy import DamagingProxy
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
BATCHES = (5, 4, 3)
START, END, COUNT = 5, 9, 12
"""Offsets of the second batch, and the number of messages."""

SPREADING = ("length", "small length", "base offset")
"""Damages after which the broker finds no later batch either."""


class World:
    """A private broker, which a test may damage and restart."""

    def __init__(self, data_dir: Path, registry_url: str, start_service: StartService) -> None:
        self.data_dir = data_dir
        self._registry = RegistrySettings(url=registry_url)
        self._start_service = start_service
        self.broker: Service
        self.start()

    def start(self, *flags: str) -> None:
        listen = ("--data-dir", str(self.data_dir / "b"), "--broker-listen", "127.0.0.1:0")
        self.broker = self._start_service("headrace", "broker", "serve", *listen, *flags)

    @property
    def settings(self) -> Settings:
        servers = KafkaSettings(bootstrap_servers=self.broker.addresses["broker"])
        return Settings(data_dir=self.data_dir, registry=self._registry, kafka=servers)

    def produce(self, topic: str, compression: str | None = None) -> None:
        """Produces three batches to one partition."""
        with Producer(self.settings, app="shop", linger_ms=500, compression=compression) as producer:
            numbers = iter(range(COUNT))
            for count in BATCHES:
                for _ in range(count):
                    producer.send(topic, {"id": next(numbers)}, key="k", schema=SCHEMA, partition=0)
                producer.flush()

    def change(self, topic: str, change: Callable[[bytearray], None]) -> None:
        """Changes the second batch of the topic in its segment."""
        (segment,) = (self.data_dir / "b").rglob(f"{topic}-0/*.log")
        data = bytearray(segment.read_bytes())
        first, second, _ = split_batches(bytes(data), "here")
        assert (first.base_offset, second.base_offset, second.next_base_offset) == (0, START, END)
        batch = data[second.position : second.end]
        change(batch)
        with segment.open("r+b") as file:
            file.seek(second.position)
            file.write(batch)


@pytest.fixture
def world(tmp_path: Path, registry_url: str, start_service: StartService, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(read_watch, "STALL_CHECK_S", 0.2)
    return World(tmp_path, registry_url, start_service)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at] ^= 4

    return change


def break_compression(batch: bytearray) -> None:
    """Damages the compressed records and corrects the checksum, as a producer with a faulty memory would send them."""
    batch[HEADER_BYTES + 12 :] = bytes(len(batch) - HEADER_BYTES - 12)
    batch[CRC_AT:CRC_FROM] = struct.pack(">I", crc32c(bytes(batch[CRC_FROM:])))


def read_until_damage(consumer: Consumer) -> tuple[list[int], DamagedBatch]:
    found: list[int] = []
    with pytest.raises(DamagedBatch) as raised:
        for message in consumer:
            assert message.value == {"id": message.offset}
            found.append(message.offset)
    return found, raised.value


DAMAGES: dict[str, tuple[Callable[[bytearray], None], str | None, int]] = {
    "records": (flip(-5), None, END),
    "checksum": (flip(CRC_AT), None, END),
    "magic": (flip(16), None, END),
    "length": (flip(8), None, -1),
    "small length": (flip(11), None, -1),
    "base offset": (flip(0), None, END),
    "small base offset": (flip(7), None, END),
    "compression": (break_compression, "gzip", END),
}
"""By name the change, the codec and the next offset that the error gives."""


@pytest.mark.parametrize("restarted", [False, True])
def test_no_message_of_a_damaged_batch_is_returned(world: World, restarted: bool) -> None:
    # A broker does not start with the other damages: it compares lengths and offsets.
    names = ["records", "compression"] if restarted else list(DAMAGES)
    for name in names:
        world.produce(topic_of(name), DAMAGES[name][1])
    if restarted:
        world.broker.stop()
    for name in names:
        world.change(topic_of(name), DAMAGES[name][0])
    if restarted:
        world.start()
    for name in names:
        modes: list[dict[str, Any]] = [{"until_end": True}]
        if name in ("records", "length"):
            modes += [{"idle_timeout_s": 0.1}, {"group": "g"}]
        for mode in modes:
            with Consumer(world.settings, topics=[topic_of(name)], **mode) as consumer:
                found, error = read_until_damage(consumer)
                assert (name, found) == (name, [0, 1, 2, 3, 4])
                assert (error.topic, error.partition, error.offset) == (topic_of(name), 0, START)
                assert (name, error.next_offset) == (name, DAMAGES[name][2])
                with pytest.raises(DamagedBatch):
                    next(consumer)
                consumer.seek(error.topic, error.partition, END)
                if name not in SPREADING:
                    assert [next(consumer).offset for _ in range(3)] == [9, 10, 11]
                else:
                    with pytest.raises(DamagedBatch):
                        next(consumer)


def topic_of(damage: str) -> str:
    return damage.replace(" ", "-")


def test_group_continues_at_the_damaged_batch_and_skips_it(world: World) -> None:
    world.produce("orders")
    world.change("orders", flip(-5))
    for _ in range(2):
        with Consumer(world.settings, topics=["orders"], group="g", auto_commit=True) as consumer:
            found, error = read_until_damage(consumer)
        assert found in ([0, 1, 2, 3, 4], [])
    assert found == []
    with Consumer(world.settings, topics=["orders"], group="g", auto_commit=True, idle_timeout_s=0.5) as consumer:
        read_until_damage(consumer)
        consumer.seek(error.topic, error.partition, error.next_offset)
        assert [message.offset for message in consumer] == [9, 10, 11]
    with Consumer(world.settings, topics=["orders"], group="g", idle_timeout_s=0.5) as consumer:
        assert list(consumer) == []


def test_asyncio_consumer_raises_and_skips_a_damaged_batch(world: World) -> None:
    world.produce("orders")
    world.change("orders", flip(-5))
    found: list[int] = []

    async def read() -> None:
        async with AsyncConsumer(world.settings, topics=["orders"], until_end=True) as consumer:
            try:
                async for message in consumer:
                    found.append(message.offset)
            except DamagedBatch as error:
                await consumer.seek(error.topic, error.partition, error.next_offset)
            async for message in consumer:
                found.append(message.offset)

    asyncio.run(read())
    assert found == [0, 1, 2, 3, 4, 9, 10, 11]


def damage_records(response: bytes) -> bytes:
    """Flips a bit of the last record in a fetch response with all three batches."""
    at = response.rfind(b"\x00\x00\x00\x00\x01" + bytes([2 * (COUNT - 1)]))
    return response if at < 0 else response[:at] + b"\x01" + response[at + 1 :]


@pytest.fixture
def damage_count() -> list[int]:
    return [0]


@pytest.fixture
def proxy(damage_count: list[int]) -> Iterator[DamagingProxy]:
    """A proxy that damages the given number of responses."""

    def change(response: bytes) -> bytes:
        changed = damage_records(response) if damage_count[0] else response
        damage_count[0] -= changed != response
        return changed

    proxy = DamagingProxy(change)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("damages", [1, 1_000_000])
def test_damage_in_the_transfer_is_read_again_or_raised(
    tmp_path: Path,
    registry_url: str,
    proxy: DamagingProxy,
    damage_count: list[int],
    damages: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    start_service: StartService,
) -> None:
    monkeypatch.setenv("HEADRACE__BROKER__ADVERTISED_HOST", "127.0.0.1")
    monkeypatch.setenv("HEADRACE__BROKER__ADVERTISED_PORT", str(proxy.port))
    world = World(tmp_path, registry_url, start_service)
    proxy.lead_to(world.broker.addresses["broker"])
    world.produce("orders")
    damage_count[0] = damages
    found: list[int] = []
    with caplog.at_level(logging.WARNING), Consumer(world.settings, topics=["orders"], until_end=True) as consumer:
        if damages == 1:
            assert [message.offset for message in consumer] == list(range(COUNT))
            assert "reading it again topic=orders partition=0 offset=9" in caplog.text
        else:
            found, error = read_until_damage(consumer)
            assert (found, error.offset, error.next_offset) == (list(range(9)), 9, 12)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_iteration_does_not_end_while_the_broker_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(read_watch, "STALLED_S", 1.0)
    monkeypatch.setattr(log_check, "TIMEOUT_S", 0.5)
    world.produce("orders")
    modes: tuple[dict[str, Any], ...] = (
        {"idle_timeout_s": 0.5},
        {"until_end": True},
        {"group": "g", "idle_timeout_s": 0.5},
    )
    consumers = [Consumer(world.settings, topics=["orders"], **mode) for mode in modes]
    for consumer in consumers:
        assert next(consumer).offset == 0
    with Producer(world.settings, app="shop") as producer:
        producer.send("orders", {"id": COUNT}, schema=SCHEMA, partition=1)
    consumers[1].seek("orders", 0, 0)  # the records that it has fetched are discarded
    os.kill(world.broker.process.pid, how)
    try:
        for consumer in consumers:
            with pytest.raises(SourceUnavailable, match=re.escape("messages cannot be read")):
                list(consumer)
    finally:
        if how == signal.SIGSTOP:
            os.kill(world.broker.process.pid, signal.SIGCONT)
    for consumer in consumers:
        consumer.close()


def test_deleted_topic_is_not_an_idle_one(world: World) -> None:
    from confluent_kafka.admin import AdminClient

    world.produce("orders")
    with Consumer(world.settings, topics=["orders"], group="g", idle_timeout_s=0.5) as consumer:
        assert len(list(consumer)) == COUNT
        admin = AdminClient({"bootstrap.servers": world.broker.addresses["broker"]})
        admin.delete_topics(["orders"])["orders"].result(30)
        with pytest.raises(SourceUnavailable, match="orders"):
            list(consumer)
