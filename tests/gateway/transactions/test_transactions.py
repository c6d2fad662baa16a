"""Ids of transactions, and the configuration of the ledger."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.chunk_body import LINES
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.transactions import service
from headrace.gateway.transactions.identity import (
    AHEAD_MS_MAX,
    DAY_MS,
    LEDGER_MS,
    USABLE_MS,
    created_ms,
    new_transaction_id,
    transaction_key,
)
from headrace.gateway.transactions.ledger import CommitRequest, OtherContent
from headrace.gateway.transactions.service import LEDGER_CONFIG, Transactions, ledger_problem
from headrace.gateway.transactions.spool import ChunkSpool, StoredChunk

NOW_MS = 1_700_000_000_000
EXPIRY_MS = 60_000


class OwnLanes:
    """Lanes of which this gateway serves those of some keys."""

    url = "http://gateway"

    def __init__(self, serves: Callable[[bytes], bool]) -> None:
        self.serves = serves
        self.required: list[bytes] = []

    async def require(self, key: bytes) -> None:
        self.required.append(key)


@pytest.fixture
def transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transactions:
    monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
    lanes: Any = OwnLanes(lambda key: key[0] % 8 == 0)
    return Transactions(lanes, ChunkSpool(tmp_path, 1, 1), EXPIRY_MS)


def kind_of(transactions: Transactions, transaction_id: str) -> Kind | None:
    try:
        asyncio.run(transactions.key("user", transaction_id))
    except GatewayError as error:
        return error.kind
    return None


def test_new_id_belongs_to_a_lane_of_this_gateway(transactions: Transactions) -> None:
    found = {transactions.new_id("user") for _ in range(20)}
    assert len(found) == 20
    assert {transaction_key("user", one)[0] % 8 for one in found} == {0}
    assert {created_ms(one) for one in found} == {NOW_MS}


def test_new_id_is_created_if_this_gateway_serves_no_lane(transactions: Transactions) -> None:
    transactions._lanes.serves = lambda key: False
    assert created_ms(transactions.new_id("user")) == NOW_MS


def test_key_depends_on_the_client_and_its_lane_is_required(transactions: Transactions) -> None:
    transaction_id = new_transaction_id(NOW_MS)
    keys = [asyncio.run(transactions.key(client, transaction_id)) for client in ("a", "b")]
    assert keys == [transaction_key("a", transaction_id), transaction_key("b", transaction_id)]
    assert transactions._lanes.required == keys and keys[0] != keys[1]


@pytest.mark.parametrize(
    ("age_ms", "kind"),
    [
        (USABLE_MS, None),
        (USABLE_MS + 1, Kind.TRANSACTION_TOO_OLD),
        (-AHEAD_MS_MAX, None),
        (-AHEAD_MS_MAX - 1, Kind.BAD_REQUEST),
    ],
)
def test_id_is_usable_for_a_time(transactions: Transactions, age_ms: int, kind: Kind | None) -> None:
    assert kind_of(transactions, new_transaction_id(NOW_MS - age_ms)) is kind


def test_ledger_remembers_every_usable_id() -> None:
    assert LEDGER_MS - USABLE_MS >= DAY_MS > AHEAD_MS_MAX


@pytest.mark.parametrize("text", ["", "x", "018bcfe56800-000000000000000", "018BCFE56800-0000000000000000", "1-1"])
def test_text_that_is_no_id_is_refused(transactions: Transactions, text: str) -> None:
    assert kind_of(transactions, text) is Kind.BAD_REQUEST


@pytest.mark.parametrize(
    ("age_ms", "kind"), [(EXPIRY_MS, Kind.TRANSACTION_UNKNOWN), (EXPIRY_MS + 1, Kind.CHUNK_EXPIRED)]
)
def test_missing_chunk_has_expired_when_its_id_is_old_enough(
    transactions: Transactions, age_ms: int, kind: Kind
) -> None:
    transaction_id = new_transaction_id(NOW_MS - age_ms)
    with pytest.raises(GatewayError) as caught:
        transactions.chunk(transaction_key("user", transaction_id), transaction_id)
    assert caught.value.kind is kind


class Body:
    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"a\n"
        yield b"b\n"


def store(directory: Path, check: Callable[[int], None] = lambda crc32: None) -> tuple[Transactions, StoredChunk]:
    lanes: Any = OwnLanes(lambda key: True)
    reader: Any = Body()
    transactions = Transactions(lanes, ChunkSpool(directory, 10**6, 10**6), EXPIRY_MS)
    wanted = OpenRequest("t", new_transaction_id(NOW_MS), format="binary")
    key = transaction_key("user", wanted.source_id)
    return transactions, asyncio.run(transactions.store(key, "user", wanted, 0, LINES, reader, check))


def test_stored_chunk_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(service, "CHUNK_BYTES_MAX", 4)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    checked: list[int] = []
    transactions, chunk = store(tmp_path, checked.append)
    assert synced == [chunk.data, chunk.data.with_suffix(".new"), chunk.data.parent]
    assert chunk.data.read_bytes() == b"a\nb\n"
    assert (chunk.length, chunk.data_bytes, [chunk.crc32]) == (4, 4, [zlib.crc32(b"a\nb\n")]) and checked == [
        chunk.crc32
    ]
    assert transactions.chunk(chunk.key, chunk.transaction_id) is chunk


@pytest.mark.parametrize("kind", [Kind.BODY_TOO_LARGE, Kind.CHUNK_DIFFERS, Kind.DISK_FULL])
def test_refused_chunk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    def refuse(_: int) -> None:
        if kind is Kind.DISK_FULL:
            raise OSError(errno.ENOSPC, "disk full")
        raise GatewayError(kind, "refused")

    if kind is Kind.DISK_FULL:
        monkeypatch.setattr(os, "fsync", refuse)
    if kind is Kind.BODY_TOO_LARGE:
        monkeypatch.setattr(service, "CHUNK_BYTES_MAX", 3)
    with pytest.raises(GatewayError) as caught:
        store(tmp_path, refuse if kind is Kind.CHUNK_DIFFERS else lambda crc32: None)
    assert caught.value.kind is kind
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]


def test_conversion_runs_once_and_is_dropped_if_the_chunk_was_deleted(tmp_path: Path) -> None:
    transactions, chunk = store(tmp_path)
    may_end, encoded = threading.Event(), []

    def encode(content: Any) -> bytes:
        assert may_end.wait(30)
        encoded.append(content)
        return bytes(content)

    async def convert(stored: StoredChunk, count: int, before_end: Callable[[], None]) -> list[Any]:
        may_end.clear()
        running = [asyncio.create_task(transactions.convert(stored, encode, 1000)) for _ in range(count)]
        await asyncio.sleep(0)
        running[0].cancel()  # its client disconnects
        await asyncio.sleep(0)
        before_end()
        may_end.set()
        return await asyncio.gather(*running, return_exceptions=True)

    cancelled, *found = asyncio.run(convert(chunk, 3, lambda: None))
    assert isinstance(cancelled, asyncio.CancelledError) and encoded == [b"a", b"b"]
    assert found == [transactions.chunk(chunk.key, chunk.transaction_id)] * 2 and found[0].record_count == 2
    again = dataclasses.replace(found[0], record_count=None, data=chunk.data)
    chunk.data.write_bytes(b"a\nb\n")
    transactions.spool.put(again)
    _, error = asyncio.run(convert(again, 2, lambda: transactions.spool.delete(again)))
    assert isinstance(error, GatewayError) and error.kind is Kind.CHUNK_EXPIRED
    assert transactions._conversions == {} and transactions.spool.bytes_in_use == 0


def test_chunk_is_deleted_after_its_commit_only(tmp_path: Path) -> None:
    transactions, chunk = store(tmp_path)
    committed: list[CommitRequest] = []

    async def submit(key: bytes, request: CommitRequest, result: Any) -> Any:
        assert key == chunk.key
        committed.append(request)
        if request.chunk is not None and len(committed) == 1:
            raise OtherContent
        return "committed"

    transactions._lanes.submit = submit  # type: ignore[method-assign, assignment]
    with pytest.raises(OtherContent):
        asyncio.run(transactions.commit("user", chunk.transaction_id, chunk))
    assert transactions.chunk(chunk.key, chunk.transaction_id) is chunk
    for stored in (chunk, None):
        assert asyncio.run(transactions.commit("user", chunk.transaction_id, stored)) == "committed"
        assert len(transactions.spool) == 0 and not chunk.data.exists()


@pytest.mark.parametrize(
    ("changes", "is_usable"),
    [
        ({}, True),
        ({"retention.ms": "-1"}, True),
        ({"retention.ms": str(LEDGER_MS - 1)}, False),
        ({"retention.bytes": "1000000"}, False),
        ({"cleanup.policy": "compact", "retention.ms": "1"}, True),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1"}, False),
    ],
)
def test_ledger_that_would_forget_transactions_is_not_used(changes: dict[str, str], is_usable: bool) -> None:
    assert (ledger_problem(LEDGER_CONFIG | changes) == "") is is_usable


def test_ledger_of_unknown_configuration_is_not_used() -> None:
    assert ledger_problem({}) != ""
