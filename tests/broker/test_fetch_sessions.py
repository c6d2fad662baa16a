"""Fetch sessions: responses omit exactly the partitions without changes, and the number of sessions is bounded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as WireRequest
from kafka.protocol.consumer import FetchResponse as WireResponse

from headrace.broker.config import BrokerConfig
from headrace.broker.errors import RequestRefused
from headrace.broker.fetch_sessions import EPOCH_MAX, EVICTION_AGE_S, FetchSession, FetchSessions
from headrace.broker.handlers import fetch
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.fetch import FetchResult
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.node import BrokerNode
from headrace.broker.protocol import fetch as codec
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from support.broker.broker_samples import NOW_MS, append, batch
from support.examples import examples

NAMELESS, NO_ID = "", uuid.UUID(int=0)
RAW = batch(b"value")


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        try:
            await asyncio.wait_for(work(node), 60)
        finally:
            await node.close()

    asyncio.run(main())


def topics(offsets: dict[int, int], name: str = "t") -> tuple[FetchTopic, ...]:
    partitions = tuple(FetchPartition(index, -1, offset, 1 << 20) for index, offset in offsets.items())
    return (FetchTopic(name, NO_ID, partitions),) if partitions else ()


def request(
    session_id: int, epoch: int, offsets: dict[int, int], forgotten: Sequence[int] = (), **more: Any
) -> FetchRequest:
    wait = {"wait_ms_max": 0, "bytes_min": 1, "bytes_max": 1 << 20, **more}
    removed = topics(dict.fromkeys(forgotten, -1))
    return FetchRequest(
        isolation_level=0, session_id=session_id, session_epoch=epoch, topics=topics(offsets), forgotten=removed, **wait
    )


async def handle_fetch(node: BrokerNode, requested: FetchRequest, version: int = 12) -> FetchResult:
    response = fetch.handle(RequestContext(node, version, "client", "127.0.0.1"), requested)
    return response if isinstance(response, FetchResult) else await response


def partition_results(response: FetchResult) -> dict[int, tuple[ErrorCode, int, int]]:
    """Returns (error, high watermark, record bytes) by partition."""
    return {
        one.partition: (one.error, one.high_watermark, len(one.records))
        for topic in response.topics
        for one in topic.partitions
    }


def test_session_response_contains_only_changes(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 4, {})
        first = await handle_fetch(node, request(0, 0, dict.fromkeys(range(4), 0)))
        session_id = first.session_id
        assert session_id > 0
        assert partition_results(first) == dict.fromkeys(range(4), (ErrorCode.NONE, 0, 0))
        assert partition_results(await handle_fetch(node, request(session_id, 1, {}))) == {}
        append(node.log("t", 2), RAW)
        assert partition_results(await handle_fetch(node, request(session_id, 2, {}))) == {
            2: (ErrorCode.NONE, 1, len(RAW))
        }
        assert partition_results(await handle_fetch(node, request(session_id, 3, {}))) == {
            2: (ErrorCode.NONE, 1, len(RAW))
        }
        assert partition_results(await handle_fetch(node, request(session_id, 4, {2: 1}))) == {}
        node.log("t", 2).advance_log_start(1)
        assert partition_results(await handle_fetch(node, request(session_id, 5, {}))) == {2: (ErrorCode.NONE, 1, 0)}
        append(node.log("t", 0), RAW)
        append(node.log("t", 3), RAW)
        assert set(partition_results(await handle_fetch(node, request(session_id, 6, {}, forgotten=[0])))) == {3}
        assert set(partition_results(await handle_fetch(node, request(session_id, 7, {0: 0, 3: 1})))) == {0}
        last = await handle_fetch(node, request(session_id, -1, {1: 0}))
        assert (last.session_id, set(partition_results(last))) == (0, {1})
        assert (await handle_fetch(node, request(session_id, 8, {}))).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_node(tmp_path, work)


def test_partition_error_is_repeated_until_it_ends(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        session_id = (await handle_fetch(node, request(0, 0, {0: 0, 5: 0}))).session_id
        for epoch in (1, 2):
            found = partition_results(await handle_fetch(node, request(session_id, epoch, {})))
            assert found == {5: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)}
        await node.changes.add_partitions("t", 6)
        assert partition_results(await handle_fetch(node, request(session_id, 3, {}))) == {5: (ErrorCode.NONE, 0, 0)}
        assert partition_results(await handle_fetch(node, request(session_id, 4, {}))) == {}
        requested = FetchTopic("t", NO_ID, (FetchPartition(0, 10**9, 0, 1 << 20),))
        newer = FetchRequest(0, 1, 1 << 20, 0, session_id, 5, (requested,))
        assert partition_results(await handle_fetch(node, newer)) == {0: (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, 0)}

    with_node(tmp_path, work)


def test_session_poll_waits_for_any_partition(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        session_id = (await handle_fetch(node, request(0, 0, dict.fromkeys(range(3), 0)))).session_id
        poll = asyncio.ensure_future(handle_fetch(node, request(session_id, 1, {}, wait_ms_max=10**6)))
        await asyncio.sleep(0.01)
        assert not poll.done()
        append(node.log("t", 1), RAW)
        assert set(partition_results(await poll)) == {1}
        assert not any(node.log("t", index).waiters for index in range(3))
        start_session = asyncio.get_running_loop().time()
        assert partition_results(await handle_fetch(node, request(session_id, 2, {1: 1}, wait_ms_max=50))) == {}
        assert asyncio.get_running_loop().time() - start_session >= 0.05

    with_node(tmp_path, work)


def test_partition_with_records_moves_to_end_of_read_order(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        for index in range(3):
            append(node.log("t", index), RAW)
        session_id = (await handle_fetch(node, request(0, 0, dict.fromkeys(range(3), 0), bytes_max=1))).session_id
        seen = []
        for epoch in range(1, 7):
            found = partition_results(await handle_fetch(node, request(session_id, epoch, {}, bytes_max=1)))
            seen += [index for index, (_, _, size) in found.items() if size]
        assert seen == [1, 2, 0, 1, 2, 0]

    with_node(tmp_path, work)


def test_unchanged_session_partitions_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 500, {})
        session_id = (await handle_fetch(node, request(0, 0, dict.fromkeys(range(500), 0)))).session_id
        read: list[PartitionLog] = []
        before = PartitionLog.read
        monkeypatch.setattr(PartitionLog, "read", lambda log, *a, **k: (read.append(log), before(log, *a, **k))[1])
        append(node.log("t", 77), RAW)
        assert set(partition_results(await handle_fetch(node, request(session_id, 1, {})))) == {77}
        assert read == [node.log("t", 77)]

    with_node(tmp_path, work)


def test_recreated_topic_is_not_part_of_session(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {})
        named = (FetchTopic(NAMELESS, topic.topic_id, (FetchPartition(0, -1, 0, 1 << 20),)),)
        session_id = (await handle_fetch(node, FetchRequest(0, 1, 1 << 20, 0, 0, 0, named), 13)).session_id
        await node.changes.delete_topic(topic)
        node.changes.create_topic("t", 1, {})
        found = await handle_fetch(node, FetchRequest(0, 1, 1 << 20, 0, session_id, 1, ()), 13)
        assert partition_results(found) == {0: (ErrorCode.UNKNOWN_TOPIC_ID, -1, 0)}
        refused = await handle_fetch(node, request(session_id, 2, {0: 0}), 12)
        assert refused.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    with_node(tmp_path, work)


@settings(max_examples=examples(0.5))
@given(st.lists(st.tuples(st.sampled_from(["append", "start", "forget", "fetch"]), st.integers(0, 4)), max_size=40))
def test_session_is_equivalent_to_full_fetches(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 5, {})
        offsets = dict.fromkeys(range(5), 0)
        session_id, epoch = 0, 0
        bounds: dict[int, tuple[int, int]] = {}
        changed, removed = dict(offsets), set[int]()
        for action, index in [*steps, ("fetch", 0)]:
            log = node.log("t", index)
            if action == "append":
                append(log, RAW)
            elif action == "start":
                log.advance_log_start(min(offsets.get(index, 0), log.high_watermark))
            elif action == "forget" and index in offsets and len(offsets) > 1:
                del offsets[index]
                changed.pop(index, None)
                removed.add(index)
                bounds.pop(index, None)
            elif action == "fetch":
                response = await handle_fetch(
                    node, request(session_id, epoch, changed, sorted(removed) if epoch else ())
                )
                assert response.error is ErrorCode.NONE
                session_id, epoch = response.session_id, epoch + 1
                changed, removed = {}, set()
                for topic in response.topics:
                    for one in topic.partitions:
                        assert one.error is ErrorCode.NONE
                        bounds[one.partition] = (one.log_start_offset, one.high_watermark)
                        if one.records:
                            changed[one.partition] = offsets[one.partition] = one.high_watermark
                assert bounds == {
                    index: (node.log("t", index).log_start_offset, node.log("t", index).high_watermark)
                    for index in offsets
                }
                assert all(offsets[index] == node.log("t", index).high_watermark for index in offsets)

    with_node(tmp_path_factory.mktemp("sessions") / "broker", work)


# Limits


def start_session(sessions: FetchSessions, partitions: int, now_s: float) -> FetchSession | None:
    return sessions.resolve(request(0, 0, dict.fromkeys(range(partitions), 0)), is_by_id=False, now_s=now_s)


def next_fetch(sessions: FetchSessions, session: FetchSession, now_s: float = 0.0, **more: Any) -> FetchSession | None:
    return sessions.resolve(request(session.session_id, session.epoch, {}, **more), is_by_id=False, now_s=now_s)


def test_session_epoch_must_be_next() -> None:
    sessions = FetchSessions()
    session = start_session(sessions, 1, 0.0)
    assert session is not None
    for epoch, code in ((2, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (-5, ErrorCode.INVALID_FETCH_SESSION_EPOCH)):
        with pytest.raises(RequestRefused) as refused:
            sessions.resolve(request(session.session_id, epoch, {}), is_by_id=False, now_s=0.0)
        assert refused.value.code is code
    assert next_fetch(sessions, session) is session
    session.epoch = EPOCH_MAX
    assert next_fetch(sessions, session) is session
    assert session.epoch == 1
    next_request = sessions.resolve(request(session.session_id, 0, {0: 0}), is_by_id=False, now_s=0.0)
    assert next_request is not None and next_request is not session
    assert len(sessions) == 1


def test_session_without_partitions_is_removed(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        session_id = (await handle_fetch(node, request(0, 0, {0: 0}))).session_id
        assert (await handle_fetch(node, request(session_id, 1, {}, forgotten=[0], wait_ms_max=10**6))).session_id == 0
        assert not len(node.fetch_sessions)
        assert (await handle_fetch(node, request(0, 0, {}))).session_id == 0

    with_node(tmp_path, work)


def test_longest_idle_session_is_evicted_and_recent_one_is_not() -> None:
    sessions = FetchSessions(sessions_max=2)
    first, second = start_session(sessions, 5, 0.0), start_session(sessions, 5, 1.0)
    assert first is not None and second is not None
    assert start_session(sessions, 50, 2.0) is None
    next_fetch(sessions, first, 100.0)
    third = start_session(sessions, 1, EVICTION_AGE_S + 2)
    assert third is not None
    next_fetch(sessions, first, EVICTION_AGE_S + 3)
    with pytest.raises(RequestRefused):
        next_fetch(sessions, second, EVICTION_AGE_S + 3)


def test_larger_session_replaces_older_smaller_session() -> None:
    sessions = FetchSessions(sessions_max=1)
    small = start_session(sessions, 2, 0.0)
    assert small is not None
    next_fetch(sessions, small, EVICTION_AGE_S)
    assert start_session(sessions, 2, EVICTION_AGE_S + 1) is None
    assert start_session(sessions, 3, EVICTION_AGE_S + 1) is not None
    assert len(sessions) == 1


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 200)), max_size=60))
def test_sessions_and_partitions_stay_within_limits(arrivals: list[tuple[int, int]]) -> None:
    sessions, now_s = FetchSessions(sessions_max=5, partitions_max=60), 0.0
    for size, later_s in arrivals:
        now_s += later_s
        start_session(sessions, size, now_s)
        assert len(sessions) <= 5 and sessions.partitions <= 60


def test_incremental_fetches_cannot_exceed_partition_limit() -> None:
    sessions = FetchSessions(partitions_max=10)
    other, session = start_session(sessions, 3, 0.0), start_session(sessions, 6, 0.0)
    assert other is not None and session is not None
    for epoch in (1, 2):  # names known partitions and one that fits
        sessions.resolve(request(session.session_id, epoch, dict.fromkeys(range(7), 0)), is_by_id=False, now_s=0.0)
    with pytest.raises(RequestRefused) as refused:
        sessions.resolve(request(session.session_id, 3, {7: 0}), is_by_id=False, now_s=0.0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions == len(other), "the session that grew has ended"


# Wire format


@pytest.mark.parametrize("version", range(7, 18))
def test_session_fields_agree_with_kafka_python(version: int) -> None:
    named = {"topic_id": uuid.UUID(int=9)} if version >= 13 else {"topic": "t"}
    topic = WireRequest.FetchTopic
    wire = WireRequest(
        version=version,
        session_id=77,
        session_epoch=3,
        topics=[topic(version=version, partitions=[topic.FetchPartition(version=version, partition=1)], **named)],
        forgotten_topics_data=[WireRequest.ForgottenTopic(version=version, partitions=[2, 3], **named)],
    )
    read = codec.decode(memoryview(bytes(wire.encode())), 0, version)
    assert (read.session_id, read.session_epoch) == (77, 3)
    (removed,) = read.forgotten
    assert (removed.name, removed.topic_id) == (("", uuid.UUID(int=9)) if version >= 13 else ("t", NO_ID))
    assert [one.partition for one in removed.partitions] == [2, 3]
    response = b"".join(codec.encode((), ErrorCode.NONE, version, 77))
    assert WireResponse.decode(response, version=version).session_id == 77
