"""Parsing of Fetch responses, compared with kafka-python's class."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from headrace.kafka_wire.fetch_response import (
    BY_ID_FROM,
    FLEXIBLE_FROM,
    NEWEST,
    OLDEST,
    ParsedFetchResponse,
    PartitionRecords,
    read_fetch_response,
)

TOPIC = FetchResponse.FetchableTopicResponse
DATA = TOPIC.PartitionData
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "partition_index": INT32,
            "error_code": st.integers(-1, 110),
            "high_watermark": INT64,
            "last_stable_offset": INT64,
            "log_start_offset": INT64,
            "aborted": st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
            "records": st.none() | st.binary(max_size=300),
            "epoch": st.none() | INT32,
        }
    ),
    max_size=3,
)


def encoded(version: int, throttle_ms: int, error_code: int, topics: list[list[dict[str, Any]]]) -> bytes:
    def data(one: dict[str, Any]) -> Any:
        aborted, epoch = one["aborted"], one["epoch"]
        tagged = {}
        if version >= FLEXIBLE_FROM and epoch is not None:
            tagged["current_leader"] = DATA.LeaderIdAndEpoch(version=version, leader_id=3, leader_epoch=epoch)
        return DATA(
            version=version,
            aborted_transactions=None
            if aborted is None
            else [
                DATA.AbortedTransaction(version=version, producer_id=producer, first_offset=first)
                for producer, first in aborted
            ],
            **{key: value for key, value in one.items() if key not in ("aborted", "epoch")},
            **tagged,
        )

    named = {"topic_id": uuid.UUID(int=7)} if version >= BY_ID_FROM else {"topic": "orders-\u00e9"}
    response = FetchResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=error_code,
        session_id=9,
        responses=[TOPIC(version=version, partitions=[data(one) for one in topic], **named) for topic in topics],
    )
    return bytes(response.encode())


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
@given(throttle_ms=INT32, error_code=st.integers(-1, 110), topics=st.lists(PARTITIONS, max_size=2))
def test_encoded_response_is_parsed(
    version: int, throttle_ms: int, error_code: int, topics: list[list[dict[str, Any]]]
) -> None:
    found = read_fetch_response(memoryview(encoded(version, throttle_ms, error_code, topics)), version)
    assert found == ParsedFetchResponse(
        throttle_ms,
        error_code if version >= 7 else 0,
        tuple(
            PartitionRecords(
                one["partition_index"],
                one["error_code"],
                one["high_watermark"],
                one["last_stable_offset"],
                one["log_start_offset"] if version >= 5 else -1,
                tuple(one["aborted"] or ()),
                memoryview(one["records"] or b""),
            )
            for topic in topics
            for one in topic
        ),
    )


ONE = {
    "partition_index": 1,
    "error_code": 0,
    "high_watermark": 9,
    "last_stable_offset": 8,
    "log_start_offset": 2,
    "aborted": [(5, 6)],
    "records": b"batches",
    "epoch": 4,
}


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
def test_truncated_response_is_an_error(version: int) -> None:
    whole = encoded(version, 0, 0, [[ONE]])
    for size in range(len(whole)):
        with pytest.raises((ValueError, struct.error)):
            read_fetch_response(memoryview(whole)[:size], version)


def test_records_are_views_of_the_receive_buffer() -> None:
    received = bytearray(encoded(NEWEST, 0, 0, [[ONE]]))
    (found,) = read_fetch_response(memoryview(received), NEWEST).partitions
    received[received.index(b"batches")] = ord("B")
    assert found.records == b"Batches"


def test_unknown_tagged_fields_are_skipped() -> None:
    whole = encoded(NEWEST, 0, 0, [[ONE]])
    assert whole[-1:] == b"\0"
    tags = b"\x02" + b"\x01\x03abc" + b"\xff\xff\xff\xff\x0f\x00"
    assert read_fetch_response(memoryview(whole[:-1] + tags), NEWEST) == read_fetch_response(memoryview(whole), NEWEST)


@pytest.mark.parametrize(
    ("frame", "version"),
    [
        (b"\0" * 100, OLDEST - 1),
        (b"\0" * 100, NEWEST + 1),
        (b"\0" * 10 + b"\xff\xff\xff\xff\xff\x0f", NEWEST),
        (b"\0" * 10 + b"\xff\xff\xff\xff\x0f", NEWEST),
        (b"\0" * 4 + b"\x7f\xff\xff\xff", OLDEST),
    ],
    ids=["older", "newer", "a number of 36 bits", "many topics", "many topics, fixed"],
)
def test_invalid_response_is_an_error(frame: bytes, version: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        read_fetch_response(memoryview(frame), version)
