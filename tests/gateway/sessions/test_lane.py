"""`Lane` on logs in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.avro_codec.core.library import Library
from headrace.gateway.encoding import Unencodable
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.chunk_body import FRAMED, JSON, LINES, ChunkBody
from headrace.gateway.sessions.errors import SessionChanged, SessionEnded, SessionUnknown, WriteRefused, WrongMediaType
from headrace.gateway.sessions.lane import (
    CHECKPOINT_RECORDS,
    CHECKPOINT_S,
    IDLE_S,
    RECORD_OVERHEAD,
    SESSION_IDLE_S,
    Lane,
)
from headrace.gateway.sessions.log_line import LineEncoder
from headrace.gateway.sessions.request import Chunk, ChunkResult, Closing, Opened, Opening, SessionId
from headrace.gateway.sessions.sources import LaneState, SourceKey, StateRecord
from headrace.kafka_wire.errors import ErrorResponse, KafkaUnavailable
from headrace.kafka_wire.record_batch import (
    encode_headers,
    parse_headers,
    read_batch,
    read_batch_header,
    split_batches,
)
from headrace.kafka_wire.topic_partition import TopicPartition
from support.gateway_audit import NotedAudit, sums_of
from support.loader.compiled_core import required_core

RECEIVED_US = 1_700_000_000_000_000
Stored = tuple[bytes, int, bytes | None]


class MemoryLog:
    """Has the methods of `LaneLog` that a lane uses. `failures` are raised, or are the result, of the next writes."""

    def __init__(self) -> None:
        self.state = LaneState()
        self.logs: dict[TopicPartition, list[Stored]] = {}
        self.failures: list[Exception] = []
        self.headers: list[dict[str, bytes | None]] = []
        self.state_writes: list[list[StateRecord]] = []
        self.writes = self.checkpoints = self.takeovers = 0
        self.has_changes = self.must_renew = False
        self._prepared: set[TopicPartition] = set()

    def take_over(self) -> None:
        self.takeovers += 1
        self.must_renew = False

    def prepare(self, topic_partition: TopicPartition) -> None:
        self._prepared.add(topic_partition)

    def write_states(self, records: Sequence[StateRecord]) -> None:
        self.state_writes.append(list(records))

    def write(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int | ErrorResponse]:
        self.writes += 1
        assert self._prepared.issuperset(batches)
        if self.failures:
            failure = self.failures.pop(0)
            if not isinstance(failure, ErrorResponse):
                raise failure
            return dict.fromkeys(batches, failure)
        found: dict[TopicPartition, int | ErrorResponse] = {}
        for topic_partition, content in batches.items():
            log = self.logs.setdefault(topic_partition, [])
            found[topic_partition] = len(log)
            (frame,) = split_batches(content, "test")
            for _, _, _, value, raw in read_batch(frame, "test", 1 << 30).records:
                headers = dict(parse_headers(raw))
                self.headers.append(headers)
                log.append((headers["hr.s"] or b"", int.from_bytes(headers["hr.q"] or b"", "big"), value))
        return found

    def stored(self, topic_partition: TopicPartition, end: int, sources: Sequence[SourceKey]) -> None:
        assert end == len(self.logs[topic_partition])
        self.has_changes = True

    def checkpoint(self) -> None:
        self.checkpoints += 1
        self.has_changes = False


class Served:
    """A lane with a clock that tests set."""

    def __init__(self, core: Library | None = None) -> None:
        self.log = MemoryLog()
        self.now_s = 0.0
        self.audit = NotedAudit()
        self.lane = Lane(self.log, self.audit, lambda: self.now_s, core)  # type: ignore[arg-type]

    def serve(self, *requests: Any) -> None:
        self.lane.serve(requests)

    def open(self, source_id: str = "s", **fields: Any) -> Opened:
        opening = opening_of(source_id, **fields)
        self.serve(opening)
        return opening.result.result(0)

    def send(self, session: SessionId, *lines: bytes, begin: int = 0) -> ChunkResult:
        chunk = lines_of(session, *lines, begin=begin)
        self.serve(chunk)
        return chunk.result.result(0)

    def values(self) -> list[bytes | None]:
        return [value for log in self.log.logs.values() for _, _, value in log]


@pytest.fixture
def served() -> Served:
    return Served()


def encode(content: Any) -> bytes:
    if content == b"unfit":
        raise Unencodable("it does not fit")
    return content if isinstance(content, bytes) else repr(content).encode()


def opening_of(source_id: str = "s", **fields: Any) -> Opening:
    known: dict[str, Any] = {
        "topic": "t",
        "host": "h",
        "partition_count": 1,
        "encoder": lambda time_us: encode,
        "has_arrival_times": False,
        "accepts_values": False,
        "record_bytes_max": 1_000_000,
        "headers": (),
        "opened_ms": 1,
    }
    return Opening(source_id=source_id, **{**known, **fields})


def anyone(topic: str) -> None:
    assert topic == "t"


def lines_of(session: SessionId, *lines: bytes, begin: int = 0) -> Chunk:
    body = b"".join(line + b"\n" for line in lines)
    return Chunk(session, anyone, ChunkBody(LINES, body, begin), RECEIVED_US)


def error_of(future: Future[Any]) -> BaseException | None:
    return future.exception(0)


def test_session_number_is_stored_before_the_response(served: Served) -> None:
    opening = opening_of()
    write_states = served.log.write_states

    def checked(records: Sequence[StateRecord]) -> None:
        assert not opening.result.done()
        write_states(records)

    served.log.write_states = checked  # type: ignore[method-assign]
    served.serve(opening)
    assert opening.result.result(0).session.number == 1
    ((key, value),) = served.log.state_writes[0]
    assert key == b'["source","t","s"]' and b'"session":1' in value


def test_failed_write_of_the_number_opens_nothing(served: Served) -> None:
    first = served.open()

    def fails(records: Sequence[StateRecord]) -> None:
        if records:
            raise KafkaUnavailable("down")

    served.log.write_states = fails  # type: ignore[method-assign]
    opening = opening_of()
    with pytest.raises(KafkaUnavailable):
        served.serve(opening)
    assert not opening.result.done()
    assert served.send(first.session, b"a").written == 1


def test_partition_that_cannot_be_used_fails_only_its_openings(served: Served) -> None:
    prepare = served.log.prepare

    def refuses(topic_partition: TopicPartition) -> None:
        if topic_partition.topic == "denied":
            raise ErrorResponse("b", "a fence", 29, "TOPIC_AUTHORIZATION_FAILED")
        prepare(topic_partition)

    served.log.prepare = refuses  # type: ignore[method-assign]
    refused, opened = opening_of(topic="denied"), opening_of()
    served.serve(refused, opened)
    error = error_of(refused.result)
    assert isinstance(error, WriteRefused) and error.code == 29
    assert opened.result.result(0).session.number == 1


def test_two_openings_at_once_have_different_numbers_and_the_second_is_valid(served: Served) -> None:
    first, second = opening_of(), opening_of(host="other")
    served.serve(first, second)
    assert [one.result.result(0).session.number for one in (first, second)] == [1, 2]
    chunk = lines_of(first.result.result(0).session, b"a")
    served.serve(chunk)
    error = error_of(chunk.result)
    assert isinstance(error, SessionEnded) and error.host == "other"
    assert served.send(second.result.result(0).session, b"a").written == 1


def test_chunk_that_waits_with_an_opening_is_stored_before_it(served: Served) -> None:
    first = served.open()
    opening = opening_of()
    served.serve(opening, lines_of(first.session, b"a", b"b"))
    assert opening.result.result(0).last_seqno == 4
    assert served.values() == [b"a", b"b"]


def test_opening_after_another_session_than_the_newest_is_refused(served: Served) -> None:
    first, same = opening_of(previous=0), opening_of(previous=0)
    served.serve(first, same)
    session = first.result.result(0).session
    outdated = error_of(same.result)
    assert isinstance(outdated, SessionChanged) and outdated.number == session.number == 1
    assert served.send(session, b"a").written == 1, "the session has not ended"
    late = opening_of(previous=0)
    served.serve(late)
    assert isinstance(error_of(late.result), SessionChanged)
    assert served.send(session, b"b", begin=2).written == 1
    assert served.open(previous=1).session.number == 2


def test_two_chunks_of_a_session_at_once_are_one_batch_in_order(served: Served) -> None:
    session = served.open().session
    again = lines_of(session, b"a", b"b", b"c")
    served.serve(lines_of(session, b"a", b"b"), again)
    assert again.result.result(0) == ChunkResult(6, 1, 2)
    assert served.values() == [b"a", b"b", b"c"] and served.log.writes == 1


def test_sources_have_independent_numbers(served: Served) -> None:
    one, other = served.open("one").session, served.open("other").session
    served.serve(lines_of(one, b"a", begin=100), lines_of(other, b"b"))
    assert [(source, seqno) for log in served.log.logs.values() for source, seqno, _ in log] == [
        (b"one", 102),
        (b"other", 2),
    ]
    assert (served.open("one").last_seqno, served.open("other").last_seqno) == (102, 2)


def test_lost_write_advances_nothing(served: Served) -> None:
    session = served.open().session
    served.log.failures = [KafkaUnavailable("down")]
    chunk = lines_of(session, b"a")
    with pytest.raises(KafkaUnavailable):
        served.serve(chunk)
    assert not chunk.result.done()
    served.lane.take_over()
    late = lines_of(session, b"a")
    served.serve(late)
    assert isinstance(error_of(late.result), SessionUnknown)
    assert served.open().last_seqno == 0


def test_refused_batch_ends_its_sessions_so_that_later_chunks_leave_no_gap(served: Served) -> None:
    one, other = served.open("one").session, served.open("other").session
    served.log.failures = [ErrorResponse("b", "a batch", 87, "INVALID_RECORD")]
    refused, same_batch = lines_of(one, b"a"), lines_of(other, b"b")
    served.serve(refused, same_batch)
    for chunk in (refused, same_batch):
        error = error_of(chunk.result)
        assert isinstance(error, WriteRefused) and error.code == 87
    later = lines_of(one, b"c", begin=2)
    served.serve(later)
    assert isinstance(error_of(later.result), SessionUnknown)
    again = served.open("one")
    assert again.last_seqno == 0 and not served.values()
    assert served.send(again.session, b"a").written == 1, "other records of the partition may be accepted"


def test_refusal_in_the_middle_of_a_chunk_fails_it_and_the_next_one(served: Served) -> None:
    session = served.open(record_bytes_max=1000).session
    lines = [b"%d" % n + b"x" * 600 for n in range(4)]
    served.serve(lines_of(session, lines[0]))
    served.log.failures = [ErrorResponse("b", "a batch", 10, "MESSAGE_TOO_LARGE")]
    first, second = lines_of(session, *lines[:3]), lines_of(session, lines[3], begin=3 * 602)
    served.serve(first, second)
    assert isinstance(error_of(first.result), WriteRefused)
    assert error_of(second.result) is not None
    assert served.values() == [lines[0]]


def test_large_chunk_is_written_in_several_batches(served: Served) -> None:
    session = served.open(record_bytes_max=10_000).session
    lines = [b"%d" % n + b"x" * 1000 for n in range(100)]
    assert served.send(session, *lines).written == 100
    assert served.values() == lines
    assert 10 <= served.log.writes <= 13


def test_batch_and_record_have_at_most_the_size_that_the_topic_accepts(served: Served) -> None:
    headers = encode_headers([(name, b"s" if name == "hr.s" else bytes(8)) for name in ("hr.s", "hr.q")])
    size = len(headers) + RECORD_OVERHEAD + 100
    session = served.open(record_bytes_max=2 * size).session
    sizes: list[int] = []
    write = served.log.write

    def note(batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int | ErrorResponse]:
        sizes.extend(read_batch_header(content).record_count for content in batches.values())
        return write(batches)

    served.log.write = note  # type: ignore[method-assign]
    assert served.send(session, *[b"a" * 100] * 5).written == 5
    assert sizes == [2, 2, 1]
    found = served.send(session, b"a" * (size + 100), b"a" * (size + 101), begin=505)
    assert (found.written, [seqno for seqno, _ in found.rejected]) == (1, [505 + 2 * size + 203])


def test_message_time_of_lines_is_that_of_the_first_line_of_their_chunk(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(served.audit, "time_of", lambda topic, value: (topic, value))
    monkeypatch.setattr(served.audit, "count_sent", lambda *arguments: found.append(arguments[4]))
    for source, has_arrival_times in (("own", False), ("arrival", True)):
        session = served.open(source, has_arrival_times=has_arrival_times).session
        served.send(session, b"a", b"b")
    assert found == [None, None, ("t", b"a"), ("t", b"a")]


def test_rejected_records_are_passed_and_not_stored(served: Served) -> None:
    session = served.open(record_bytes_max=1000).session
    found = served.send(session, b"a", b"unfit", b"x" * 1000, b"b", b"unfit")
    assert [seqno for seqno, _ in found.rejected] == [8, 1009, 1017]
    assert (found.written, found.last_seqno) == (2, 1017)
    assert served.values() == [b"a", b"b"]
    assert served.open().last_seqno == 1011


def test_defect_of_an_encoder_ends_the_session_and_not_the_lane(served: Served) -> None:
    def broken(content: Any) -> bytes:
        raise ZeroDivisionError

    one, other = served.open("one", encoder=lambda time_us: broken).session, served.open("other").session
    failing, working = lines_of(one, b"a"), lines_of(other, b"b")
    served.serve(failing, working)
    assert isinstance(error_of(failing.result), ZeroDivisionError)
    assert working.result.result(0).written == 1
    later = lines_of(one, b"a")
    served.serve(later)
    assert isinstance(error_of(later.result), SessionUnknown)


def test_other_content_with_the_last_number_is_a_conflict(served: Served) -> None:
    session = served.open().session
    served.send(session, b"a", b"b")
    (source,) = served.log.state.sources.values()
    assert (source.last_seqno, source.offset) == (4, 1)
    assert served.send(session, b"a", b"X").conflict
    assert not served.send(session, b"X", b"b").conflict, "only the last record has a checksum"


def test_parsed_values_need_a_session_of_json(served: Served) -> None:
    plain, json = served.open("plain").session, served.open("json", accepts_values=True).session
    body = b'{"records": [{"seqno": 5, "value": {"a": 1}}]}'
    chunks = [Chunk(session, anyone, ChunkBody(JSON, body, None), RECEIVED_US) for session in (plain, json)]
    served.serve(*chunks)
    assert isinstance(error_of(chunks[0].result), WrongMediaType)
    assert chunks[1].result.result(0).last_seqno == 5


def test_part_and_time_become_headers(served: Served) -> None:
    json, framed = (served.open(name, accepts_values=True).session for name in ("json", "framed"))
    with_time = b'{"records": [{"seqno": 5, "value": 1, "time": "2026-01-01T00:00:00Z"}]}'
    served.serve(
        Chunk(json, anyone, ChunkBody(JSON, with_time, None), RECEIVED_US),
        Chunk(framed, anyone, ChunkBody(FRAMED, b"7 1 1/2\na\n", None), RECEIVED_US),
    )
    assert [headers for headers in served.log.headers if "time" in headers or "hr.part" in headers] == [
        {"hr.s": b"json", "time": b"2026-01-01T00:00:00Z", "hr.q": (5).to_bytes(8, "big")},
        {"hr.s": b"framed", "hr.part": b"1/2", "hr.q": (7).to_bytes(8, "big")},
    ]


def test_permission_is_checked_before_anything_is_told(served: Served) -> None:
    session = served.open().session
    served.open()

    def denied(topic: str) -> None:
        raise GatewayError(Kind.NOT_AUTHORIZED, topic)

    chunk = Chunk(session, denied, ChunkBody(FRAMED, b"", None), RECEIVED_US)
    closing = Closing(session, denied)
    served.serve(chunk, closing)
    assert isinstance(error_of(chunk.result), GatewayError) and isinstance(error_of(closing.result), GatewayError)


def test_closing_ends_only_that_session(served: Served) -> None:
    first, second = served.open().session, served.open().session
    ended = Closing(first, anyone)
    served.serve(ended)
    assert ended.result.result(0) is None
    assert served.send(second, b"a").written == 1
    served.serve(Closing(second, anyone))
    late = lines_of(second, b"b")
    served.serve(late)
    assert isinstance(error_of(late.result), SessionUnknown)


@pytest.mark.parametrize(
    ("partition_count", "expected"),
    [(8, lambda first: first), (3, lambda first: first), (2, lambda first: 0), (1, lambda first: 0)],
    ids=["added partitions", "created again with its own", "without its own", "with one"],
)
def test_source_stays_in_its_partition(served: Served, partition_count: int, expected: Callable[[int], int]) -> None:
    first = served.open("source-3", partition_count=4)
    assert first.partition == 2
    again = served.open("source-3", partition_count=partition_count)
    assert again.partition == expected(first.partition)


def test_checkpoint_after_a_second_or_many_records(served: Served) -> None:
    assert served.lane.wait_s == IDLE_S
    session = served.open().session
    served.send(session, b"a")
    assert served.lane.wait_s == CHECKPOINT_S
    served.now_s += CHECKPOINT_S / 2
    served.lane.run_due()
    assert served.log.checkpoints == 0 and served.lane.wait_s == CHECKPOINT_S / 2
    served.now_s += CHECKPOINT_S / 2
    served.lane.run_due()
    assert served.log.checkpoints == 1 and served.lane.wait_s == IDLE_S
    served.send(session, *[b"x"] * CHECKPOINT_RECORDS, begin=2)
    served.lane.run_due()
    assert served.log.checkpoints == 2


def test_lane_is_taken_over_again_in_time(served: Served) -> None:
    served.log.must_renew = True
    served.now_s += CHECKPOINT_S
    served.lane.run_due()
    assert served.log.takeovers == 1


def test_idle_session_is_removed(served: Served) -> None:
    idle, used = served.open("idle").session, served.open("used").session
    served.now_s += SESSION_IDLE_S / 2
    served.send(used, b"a")
    served.now_s += SESSION_IDLE_S / 2 + 1
    served.lane.run_due()
    late = lines_of(idle, b"a")
    served.serve(late)
    assert isinstance(error_of(late.result), SessionUnknown)
    assert served.send(used, b"b", begin=2).written == 1


@pytest.mark.parametrize(
    "text", ["", "-", "x-1", f"{'0' * 32}-", f"{'0' * 32}-x", f"{'g' * 32}-1", f"{'0' * 32}-{'9' * 20}"]
)
def test_malformed_session_id_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        SessionId.parse(text)


def test_session_id_is_parsed_as_it_is_printed() -> None:
    session = SessionId(SourceKey(bytes(range(16))), 7)
    assert SessionId.parse(str(session)) == session


def test_audit_counts_stored_records_once_and_refused_ones_as_failed(served: Served) -> None:
    opened = served.open()
    served.send(opened.session, b"a", b"b")
    served.send(opened.session, b"a", b"b", b"c")
    served.log.failures.append(ErrorResponse("", "t", 10, "too large"))
    with pytest.raises(WriteRefused):
        served.send(opened.session, b"d", begin=6)
    served.log.failures.append(KafkaUnavailable("away"))
    with pytest.raises(KafkaUnavailable):
        served.send(served.open().session, b"e", begin=6)
    assert served.audit.sent == [b"a", b"b", b"c", b"d", b"e"]
    assert (served.audit.acknowledged, served.audit.failed) == ([b"a", b"b", b"c"], [b"d"])


LOG_LINES = st.lists(
    st.one_of(
        st.binary(max_size=80).map(lambda line: line.replace(b"\n", b"\0")),
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40).map(str.encode),
        st.sampled_from([b"", b"\0", b"\xff", b"a" * 63, b"a" * 64, b"a" * 180, b"a" * 400, "ä".encode() * 100]),
    ),
    max_size=12,
)
SENT_CHUNKS = st.lists(st.tuples(st.sampled_from("st"), LOG_LINES, st.integers(-1, 1)), max_size=3)
REFUSED = ErrorResponse("b", "a batch", 10, "MESSAGE_TOO_LARGE")


def results_of(
    served: Served, rounds: Sequence[Sequence[tuple[str, Sequence[bytes], int]]], record_bytes_max: int
) -> list[Any]:
    """Returns the result or the error of each chunk. Sessions that have ended are opened again. A chunk begins before,
    at or after the end of the chunk before it."""
    results: list[Any] = []
    ends = dict.fromkeys("st", 0)
    for chunks in rounds:
        opened = {
            source: served.open(
                source,
                encoder=partial(LineEncoder, b"\0\0\0\0\1", "host", "/file"),
                has_arrival_times=True,
                record_bytes_max=record_bytes_max,
                headers=(("host", b"host"),),
            )
            for source in ends
        }
        sent = []
        for source, lines, gap in chunks:
            begin = max(0, ends[source] + gap * 7)
            sent.append(lines_of(opened[source].session, *lines, begin=begin))
            ends[source] = begin + sum(len(line) + 1 for line in lines)
        served.serve(*sent)
        results += [chunk.result.exception(0) or chunk.result.result(0) for chunk in sent]
    return results


@given(st.lists(SENT_CHUNKS, max_size=4), st.sampled_from([200, 600, 1_000_000]), st.sets(st.integers(0, 5)))
@example([[("s", [b"a" * 100_000] * 12, 0)]], 1_000_000, set())
@example([[("s", [b"a" * 600_000, b"b", b"a" * 600_000], 0), ("t", [b"c"], 0)]], 1_000_000, set())
def test_core_stores_lines_like_the_reference(
    rounds: list[list[tuple[str, list[bytes], int]]], record_bytes_max: int, refused: set[int]
) -> None:
    lanes = [Served(), Served(required_core())]
    results = []
    for served in lanes:
        write = served.log.write

        def refusing(
            batches: Mapping[TopicPartition, bytes], log: MemoryLog = served.log, write: Any = write
        ) -> dict[TopicPartition, int | ErrorResponse]:
            log.failures = [REFUSED] if log.writes in refused else []
            found: dict[TopicPartition, int | ErrorResponse] = write(batches)
            return found

        served.log.write = refusing  # type: ignore[method-assign]
        results.append(results_of(served, rounds, record_bytes_max))
    expected, found = lanes
    assert [repr(one) for one in results[1]] == [repr(one) for one in results[0]]
    assert found.log.logs == expected.log.logs
    assert found.log.headers == expected.log.headers
    assert found.log.writes == expected.log.writes
    assert found.log.state.sources == expected.log.state.sources
    for name in ("sent", "acknowledged", "failed"):
        assert sums_of(getattr(found.audit, name)) == sums_of(getattr(expected.audit, name))
