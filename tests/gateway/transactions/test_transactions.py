"""Ids of transactions, and the configuration of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.errors import GatewayError, Kind
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
from headrace.gateway.transactions.service import LEDGER_CONFIG, Transactions, ledger_problem
from headrace.gateway.transactions.spool import ChunkSpool

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
