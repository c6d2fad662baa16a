"""Fetch sessions: an answer leaves out what the client knows and nothing else, and there are only so many of them."""

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
from headrace.broker.fetch_sessions import EPOCH_MAX, EVICTABLE_S, FetchSession, FetchSessions
from headrace.broker.handlers import fetch
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.fetch import FetchAnswer
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
    gone = topics(dict.fromkeys(forgotten, -1))
    return FetchRequest(
        isolation_level=0, session_id=session_id, session_epoch=epoch, topics=topics(offsets), forgotten=gone, **wait
    )


async def ask(node: BrokerNode, wanted: FetchRequest, version: int = 12) -> FetchAnswer:
    answer = fetch.handle(RequestContext(node, version, "client", "127.0.0.1"), wanted)
    return answer if isinstance(answer, FetchAnswer) else await answer


def told(answer: FetchAnswer) -> dict[int, tuple[ErrorCode, int, int]]:
    """By partition its error, high watermark and bytes."""
    return {
        one.partition: (one.error, one.high_watermark, len(one.records))
        for topic in answer.topics
        for one in topic.partitions
    }


def test_a_session_tells_only_what_is_new(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 4, {})
        first = await ask(node, request(0, 0, dict.fromkeys(range(4), 0)))
        session_id = first.session_id
        assert session_id > 0
        assert told(first) == dict.fromkeys(range(4), (ErrorCode.NONE, 0, 0))
        assert told(await ask(node, request(session_id, 1, {}))) == {}
        append(node.log("t", 2), RAW)
        assert told(await ask(node, request(session_id, 2, {}))) == {2: (ErrorCode.NONE, 1, len(RAW))}
        assert told(await ask(node, request(session_id, 3, {}))) == {2: (ErrorCode.NONE, 1, len(RAW))}
        assert told(await ask(node, request(session_id, 4, {2: 1}))) == {}
        node.log("t", 2).advance_log_start(1)
        assert told(await ask(node, request(session_id, 5, {}))) == {2: (ErrorCode.NONE, 1, 0)}
        append(node.log("t", 0), RAW)
        append(node.log("t", 3), RAW)
        assert set(told(await ask(node, request(session_id, 6, {}, forgotten=[0])))) == {3}
        assert set(told(await ask(node, request(session_id, 7, {0: 0, 3: 1})))) == {0}
        last = await ask(node, request(session_id, -1, {1: 0}))
        assert (last.session_id, set(told(last))) == (0, {1})
        assert (await ask(node, request(session_id, 8, {}))).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_node(tmp_path, work)


def test_an_error_is_told_every_time_and_its_end_too(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        session_id = (await ask(node, request(0, 0, {0: 0, 5: 0}))).session_id
        for epoch in (1, 2):
            found = told(await ask(node, request(session_id, epoch, {})))
            assert found == {5: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)}
        await node.changes.add_partitions("t", 6)
        assert told(await ask(node, request(session_id, 3, {}))) == {5: (ErrorCode.NONE, 0, 0)}
        assert told(await ask(node, request(session_id, 4, {}))) == {}
        wanted = FetchTopic("t", NO_ID, (FetchPartition(0, 10**9, 0, 1 << 20),))
        newer = FetchRequest(0, 1, 1 << 20, 0, session_id, 5, (wanted,))
        assert told(await ask(node, newer)) == {0: (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, 0)}

    with_node(tmp_path, work)


def test_a_poll_in_a_session_waits_for_any_of_its_partitions(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        session_id = (await ask(node, request(0, 0, dict.fromkeys(range(3), 0)))).session_id
        poll = asyncio.ensure_future(ask(node, request(session_id, 1, {}, wait_ms_max=10**6)))
        await asyncio.sleep(0.01)
        assert not poll.done()
        append(node.log("t", 1), RAW)
        assert set(told(await poll)) == {1}
        assert not any(node.log("t", index).waiters for index in range(3))
        begun = asyncio.get_running_loop().time()
        assert told(await ask(node, request(session_id, 2, {1: 1}, wait_ms_max=50))) == {}
        assert asyncio.get_running_loop().time() - begun >= 0.05

    with_node(tmp_path, work)


def test_what_had_records_goes_behind_the_others(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        for index in range(3):
            append(node.log("t", index), RAW)
        session_id = (await ask(node, request(0, 0, dict.fromkeys(range(3), 0), bytes_max=1))).session_id
        seen = []
        for epoch in range(1, 7):
            found = told(await ask(node, request(session_id, epoch, {}, bytes_max=1)))
            seen += [index for index, (_, _, size) in found.items() if size]
        assert seen == [1, 2, 0, 1, 2, 0]

    with_node(tmp_path, work)


def test_idle_partitions_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 500, {})
        session_id = (await ask(node, request(0, 0, dict.fromkeys(range(500), 0)))).session_id
        read: list[PartitionLog] = []
        before = PartitionLog.read
        monkeypatch.setattr(PartitionLog, "read", lambda log, *a, **k: (read.append(log), before(log, *a, **k))[1])
        append(node.log("t", 77), RAW)
        assert set(told(await ask(node, request(session_id, 1, {})))) == {77}
        assert read == [node.log("t", 77)]

    with_node(tmp_path, work)


def test_a_topic_that_was_made_anew_is_not_the_one_of_the_session(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic = node.changes.create_topic("t", 1, {})
        named = (FetchTopic(NAMELESS, topic.topic_id, (FetchPartition(0, -1, 0, 1 << 20),)),)
        session_id = (await ask(node, FetchRequest(0, 1, 1 << 20, 0, 0, 0, named), 13)).session_id
        await node.changes.delete_topic(topic)
        node.changes.create_topic("t", 1, {})
        found = await ask(node, FetchRequest(0, 1, 1 << 20, 0, session_id, 1, ()), 13)
        assert told(found) == {0: (ErrorCode.UNKNOWN_TOPIC_ID, -1, 0)}
        refused = await ask(node, request(session_id, 2, {0: 0}), 12)
        assert refused.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    with_node(tmp_path, work)


@settings(max_examples=examples(0.5))
@given(st.lists(st.tuples(st.sampled_from(["append", "start", "forget", "fetch"]), st.integers(0, 4)), max_size=40))
def test_a_client_with_a_session_learns_what_full_fetches_would_tell(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 5, {})
        offsets = dict.fromkeys(range(5), 0)
        session_id, epoch = 0, 0
        bounds: dict[int, tuple[int, int]] = {}
        changed, gone = dict(offsets), set[int]()
        for what, index in [*steps, ("fetch", 0)]:
            log = node.log("t", index)
            if what == "append":
                append(log, RAW)
            elif what == "start":
                log.advance_log_start(min(offsets.get(index, 0), log.high_watermark))
            elif what == "forget" and index in offsets and len(offsets) > 1:
                del offsets[index]
                changed.pop(index, None)
                gone.add(index)
                bounds.pop(index, None)
            elif what == "fetch":
                answer = await ask(node, request(session_id, epoch, changed, sorted(gone) if epoch else ()))
                assert answer.error is ErrorCode.NONE
                session_id, epoch = answer.session_id, epoch + 1
                changed, gone = {}, set()
                for topic in answer.topics:
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


# How many there are


def begun(sessions: FetchSessions, partitions: int, now_s: float) -> FetchSession | None:
    return sessions.of(request(0, 0, dict.fromkeys(range(partitions), 0)), is_by_id=False, now_s=now_s)


def next_of(sessions: FetchSessions, session: FetchSession, now_s: float = 0.0, **more: Any) -> FetchSession | None:
    return sessions.of(request(session.session_id, session.epoch, {}, **more), is_by_id=False, now_s=now_s)


def test_a_fetch_must_be_the_next_one_of_its_session() -> None:
    sessions = FetchSessions()
    session = begun(sessions, 1, 0.0)
    assert session is not None
    for epoch, code in ((2, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (-5, ErrorCode.INVALID_FETCH_SESSION_EPOCH)):
        with pytest.raises(RequestRefused) as refused:
            sessions.of(request(session.session_id, epoch, {}), is_by_id=False, now_s=0.0)
        assert refused.value.code is code
    assert next_of(sessions, session) is session
    session.epoch = EPOCH_MAX
    assert next_of(sessions, session) is session
    assert session.epoch == 1
    again = sessions.of(request(session.session_id, 0, {0: 0}), is_by_id=False, now_s=0.0)
    assert again is not None and again is not session
    assert len(sessions) == 1


def test_a_session_without_partitions_ends(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        session_id = (await ask(node, request(0, 0, {0: 0}))).session_id
        assert (await ask(node, request(session_id, 1, {}, forgotten=[0], wait_ms_max=10**6))).session_id == 0
        assert not len(node.fetch_sessions)
        assert (await ask(node, request(0, 0, {}))).session_id == 0

    with_node(tmp_path, work)


def test_without_room_the_one_that_was_idle_longest_goes_and_a_young_one_never() -> None:
    sessions = FetchSessions(sessions_max=2)
    first, second = begun(sessions, 5, 0.0), begun(sessions, 5, 1.0)
    assert first is not None and second is not None
    assert begun(sessions, 50, 2.0) is None
    next_of(sessions, first, 100.0)
    third = begun(sessions, 1, EVICTABLE_S + 2)
    assert third is not None
    next_of(sessions, first, EVICTABLE_S + 3)
    with pytest.raises(RequestRefused):
        next_of(sessions, second, EVICTABLE_S + 3)


def test_a_larger_one_takes_the_place_of_a_smaller_one_that_is_no_longer_young() -> None:
    sessions = FetchSessions(sessions_max=1)
    small = begun(sessions, 2, 0.0)
    assert small is not None
    next_of(sessions, small, EVICTABLE_S)
    assert begun(sessions, 2, EVICTABLE_S + 1) is None
    assert begun(sessions, 3, EVICTABLE_S + 1) is not None
    assert len(sessions) == 1


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 200)), max_size=60))
def test_sessions_and_their_partitions_are_bounded(arrivals: list[tuple[int, int]]) -> None:
    sessions, now_s = FetchSessions(sessions_max=5, partitions_max=60), 0.0
    for size, later_s in arrivals:
        now_s += later_s
        begun(sessions, size, now_s)
        assert len(sessions) <= 5 and sessions.partitions <= 60


def test_a_session_cannot_be_filled_by_and_by() -> None:
    sessions = FetchSessions(partitions_max=10)
    session = begun(sessions, 6, 0.0)
    assert session is not None
    with pytest.raises(RequestRefused) as refused:
        sessions.of(request(session.session_id, 1, dict.fromkeys(range(6, 12), 0)), is_by_id=False, now_s=0.0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not len(sessions)


# On the wire


@pytest.mark.parametrize("version", range(7, 18))
def test_forgotten_topics_are_read_and_session_ids_written_as_kafka_python_does(version: int) -> None:
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
    (gone,) = read.forgotten
    assert (gone.name, gone.topic_id) == (("", uuid.UUID(int=9)) if version >= 13 else ("t", NO_ID))
    assert [one.partition for one in gone.partitions] == [2, 3]
    answer = b"".join(codec.encode((), ErrorCode.NONE, version, 77))
    assert WireResponse.decode(answer, version=version).session_id == 77
