"""The client against a scripted broker: what it asks, and how each kind of trouble ends."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from headrace.kafka_wire import cluster as kafka_client
from headrace.kafka_wire.breaker import COOL_DOWN_S
from headrace.kafka_wire.cluster import (
    THROTTLE_S_MAX,
    AbortedTransaction,
    EpochAnswers,
    EpochEnd,
    EpochQuestion,
    KafkaCluster,
    PartitionMetadata,
)
from headrace.kafka_wire.connection import parse_bootstrap_servers
from headrace.kafka_wire.errors import (
    AuthenticationRefused,
    KafkaUnavailable,
    LogChanged,
    OffsetOutOfRange,
    RequestRefused,
)
from headrace.kafka_wire.security import KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition

TP = TopicPartition("orders", 2)
TOPIC_ID = uuid.UUID(int=77)
PAIRS = (
    (ApiVersionsRequest, ApiVersionsResponse, 0),
    (MetadataRequest, MetadataResponse, 12),
    (ListOffsetsRequest, ListOffsetsResponse, 7),
    (FetchRequest, FetchResponse, 13),
    (FindCoordinatorRequest, FindCoordinatorResponse, 3),
    (OffsetCommitRequest, OffsetCommitResponse, 8),
    (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 4),
    (SaslHandshakeRequest, SaslHandshakeResponse, 1),
    (SaslAuthenticateRequest, SaslAuthenticateResponse, 2),
)
BY_KEY = {request.API_KEY: (request, response) for request, response, _ in PAIRS}


class ScriptedBroker:
    """Answers requests by functions of the request; what a test does not script has a plain answer."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.versions = {request.API_KEY: (0, version) for request, _, version in PAIRS}
        self.asked: list[Any] = []
        self.scripts: dict[int, list[Callable[[Any, int], Any]]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def script(self, request: Any, *answers: Callable[[Any, int], Any]) -> None:
        """The next answers to this kind of request; the last one stays."""
        self.scripts[request.API_KEY] = list(answers)

    def of(self, request: Any) -> list[Any]:
        return [asked for asked in self.asked if type(asked) is request]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that gives up on an answer resets the connection; that ends it like any other goodbye.
        with connection, contextlib.suppress(ConnectionError):
            while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
                frame = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                key, version = struct.unpack_from(">hh", frame)
                request = BY_KEY[key][0].decode(frame, version=version, header=True)
                self.asked.append(request)
                answer = self._answer(key, request, version)
                if answer is None:
                    return
                if not isinstance(answer, bytes):
                    answer.with_header(correlation_id=request.header.correlation_id)
                    answer = bytes(answer.encode(header=True, framed=True))
                connection.sendall(answer)

    def _answer(self, key: int, request: Any, version: int) -> Any:
        script = self.scripts.get(key)
        if script:
            return (script.pop(0) if len(script) > 1 else script[0])(request, version)
        return {
            ApiVersionsRequest.API_KEY: self._api_versions,
            MetadataRequest.API_KEY: self.metadata,
            FindCoordinatorRequest.API_KEY: self._coordinator,
        }[key](request, version)

    def _api_versions(self, request: Any, version: int) -> Any:
        api = ApiVersionsResponse.ApiVersion
        return ApiVersionsResponse(
            version=0,
            error_code=0,
            api_keys=[
                api(version=0, api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            ],
        )

    def metadata(self, request: Any, version: int, error: int = 0) -> Any:
        return leads(self)(request, version, error)

    def _coordinator(self, request: Any, version: int) -> Any:
        return FindCoordinatorResponse(version=version, error_code=0, node_id=1, host="127.0.0.1", port=self.port)


def leads(leader: ScriptedBroker, *others: ScriptedBroker, partitions: Iterable[int] = (2,)) -> Callable[..., Any]:
    """Metadata of a cluster in which the first of these brokers, which is number 1, leads all partitions."""

    def answer(request: Any, version: int, error: int = 0) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition
        named = {"topic_id": TOPIC_ID} if version >= 10 else {}
        found = [
            partition(version=version, error_code=0, partition_index=index, leader_id=1, leader_epoch=5)
            for index in partitions
        ]
        return MetadataResponse(
            version=version,
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    version=version, node_id=number, host="127.0.0.1", port=broker.port, rack=None
                )
                for number, broker in enumerate((leader, *others), start=1)
            ],
            cluster_id="c",
            topics=[topic(version=version, error_code=error, name="orders", partitions=found, **named)],
        )

    return answer


def breaks_off(request: Any, version: int) -> None:
    return None


def fetched(
    records: bytes = b"", error: int = 0, aborted: tuple[tuple[int, int], ...] = (), throttle_ms: int = 0
) -> Callable[..., Any]:
    def answer(request: Any, version: int) -> Any:
        topic = FetchResponse.FetchableTopicResponse
        data = topic.PartitionData
        return FetchResponse(
            version=version,
            throttle_time_ms=throttle_ms,
            responses=[
                topic(
                    version=version,
                    partitions=[
                        data(
                            version=version,
                            partition_index=2,
                            error_code=error,
                            high_watermark=90,
                            last_stable_offset=80,
                            log_start_offset=3,
                            records=records,
                            aborted_transactions=[
                                data.AbortedTransaction(version=version, producer_id=pid, first_offset=first)
                                for pid, first in aborted
                            ],
                        )
                    ],
                )
            ],
        )

    return answer


def listed(offset: int, error: int = 0) -> Callable[..., Any]:
    def answer(request: Any, version: int) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        part = topic.ListOffsetsPartitionResponse(version=version, partition_index=2, error_code=error, offset=offset)
        return ListOffsetsResponse(version=version, topics=[topic(version=version, name="orders", partitions=[part])])

    return answer


def committed(error: int) -> Callable[..., Any]:
    def answer(request: Any, version: int) -> Any:
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        part = topic.OffsetCommitResponsePartition(version=version, partition_index=2, error_code=error)
        return OffsetCommitResponse(version=version, topics=[topic(version=version, name="orders", partitions=[part])])

    return answer


@dataclass
class Clock:
    """A clock that only the test moves; `slept` is what the client would have waited, in seconds."""

    now_s: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    found = ScriptedBroker()
    yield found
    found.socket.close()


@pytest.fixture
def other() -> Iterator[ScriptedBroker]:
    found = ScriptedBroker()
    yield found
    found.socket.close()


@pytest.fixture
def cluster(broker: ScriptedBroker, clock: Clock) -> Iterator[KafkaCluster]:
    with KafkaCluster(f"127.0.0.1:{broker.port}", timeout_s=5, clock=clock, sleep=clock.slept.append) as found:
        yield found


def test_metadata(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    found = cluster.metadata()
    assert found.cluster_id == "c" and found.brokers == {1: ("127.0.0.1", broker.port)}
    topic = found.topics["orders"]
    assert (topic.topic_id, topic.partitions, topic.error) == (str(TOPIC_ID), {2: PartitionMetadata(1, 5)}, "")
    (asked,) = broker.of(MetadataRequest)
    assert asked.topics is None and asked.allow_auto_topic_creation is False


def test_a_topic_that_does_not_exist_has_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(MetadataRequest, lambda request, version: broker.metadata(request, version, error=3))
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cluster.metadata(["orders"]).topics["orders"].error


def test_a_fetch_names_the_incarnation_and_the_epoch(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetched(b"batches", aborted=((9, 40),)))
    piece = cluster.fetch(TP, 41, 1000, topic_id=str(TOPIC_ID), leader_epoch=5)
    assert (piece.records, piece.high_watermark, piece.last_stable_offset, piece.log_start_offset) == (
        b"batches",
        90,
        80,
        3,
    )
    assert piece.aborted == (AbortedTransaction(9, 40),) and piece.broker == f"127.0.0.1:{broker.port}"
    (asked,) = broker.of(FetchRequest)
    assert (asked.isolation_level, asked.session_epoch, asked.topics[0].topic_id) == (1, -1, TOPIC_ID)
    partition = asked.topics[0].partitions[0]
    assert (partition.partition, partition.fetch_offset, partition.current_leader_epoch) == (2, 41, 5)


def test_an_older_broker_is_asked_by_name(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.versions[FetchRequest.API_KEY] = (4, 8)
    broker.script(FetchRequest, fetched(b"x"))
    assert cluster.fetch(TP, 0, 1000, topic_id=str(TOPIC_ID), leader_epoch=5).records == b"x"
    assert broker.of(FetchRequest)[0].topics[0].topic == "orders"


def test_an_error_of_the_whole_answer_is_named(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, lambda _, version: FetchResponse(version=version, error_code=29, responses=[]))
    with pytest.raises(RequestRefused) as error:
        cluster.fetch(TP, 7, 1000)
    assert error.value.code == 29


def offsets_asked(broker: ScriptedBroker) -> list[int]:
    return [asked.topics[0].partitions[0].fetch_offset for asked in broker.of(FetchRequest)]


def test_a_broker_that_knows_older_fetches_only_is_refused(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.versions[FetchRequest.API_KEY] = (0, 3)
    with pytest.raises(RequestRefused, match=r"\b0\b.*\b3\b.*\b4\b.*\b13\b") as error:
        cluster.fetch(TP, 0, 1000, topic_id=str(TOPIC_ID))
    assert error.value.code == 35


def test_what_was_asked_ahead_is_not_asked_again(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetched(b"a"), fetched(b"b"), fetched(b"c"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.fetch_ahead(TP, 7, 1000)
    cluster.fetch_ahead(TP, 8, 1000)  # one at a time
    assert cluster.fetch(TP, 7, 1000).records == b"b"
    assert cluster.fetch(TP, 9, 1000).records == b"c"
    assert offsets_asked(broker) == [0, 7, 9]


@pytest.mark.parametrize("differs", ["offset", "bytes", "epoch", "incarnation", "partition"])
def test_what_was_asked_ahead_is_no_answer_to_another_question(
    broker: ScriptedBroker, cluster: KafkaCluster, differs: str
) -> None:
    broker.script(MetadataRequest, leads(broker, partitions=(2, 3)))
    broker.script(FetchRequest, fetched(b"a"), fetched(b"not wanted"), fetched(b"c"))
    assert cluster.fetch(TP, 0, 1000, leader_epoch=5).records == b"a"
    cluster.fetch_ahead(TP, 7, 1000, leader_epoch=5)
    other = TopicPartition("orders", 3) if differs == "partition" else TP
    piece = cluster.fetch(
        other,
        8 if differs == "offset" else 7,
        2000 if differs == "bytes" else 1000,
        leader_epoch=4 if differs == "epoch" else 5,
        topic_id=str(uuid.UUID(int=78)) if differs == "incarnation" else "",
    )
    assert piece.records == b"c"
    assert len(broker.of(FetchRequest)) == 3


def test_another_kind_of_question_is_answered_behind_what_was_asked_ahead(
    broker: ScriptedBroker, cluster: KafkaCluster
) -> None:
    broker.script(FetchRequest, fetched(b"a"), fetched(b"b"), fetched(b"c"))
    broker.script(ListOffsetsRequest, listed(12))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.fetch_ahead(TP, 7, 1000)
    assert cluster.offsets([TP], "latest") == {TP: 12}
    assert cluster.fetch(TP, 7, 1000).records == b"c", "the answer to the first was dropped"


def test_a_broker_that_breaks_off_what_was_asked_ahead_is_asked_again(
    broker: ScriptedBroker, cluster: KafkaCluster
) -> None:
    broker.script(FetchRequest, fetched(b"a"), breaks_off, fetched(b"b"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.fetch_ahead(TP, 7, 1000)
    assert cluster.fetch(TP, 7, 1000).records == b"b"
    assert offsets_asked(broker) == [0, 7, 7]


def test_an_error_of_what_was_asked_ahead_is_that_of_the_fetch(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetched(b"a"), fetched(error=100))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.fetch_ahead(TP, 7, 1000)
    with pytest.raises(LogChanged, match="UNKNOWN_TOPIC_ID"):
        cluster.fetch(TP, 7, 1000)
    assert offsets_asked(broker) == [0, 7]


def test_one_request_learns_where_all_topics_are_that_are_expected(
    broker: ScriptedBroker, cluster: KafkaCluster
) -> None:
    broker.script(FetchRequest, fetched(b"a"))
    cluster.expect(["users", "orders", "pages"])
    cluster.fetch(TP, 0, 1000)
    assert [[topic.name for topic in asked.topics] for asked in broker.of(MetadataRequest)] == [
        ["orders", "pages", "users"]
    ]


def test_nothing_is_asked_ahead_of_a_broker_that_was_not_asked_yet(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster
) -> None:
    cluster.fetch_ahead(TP, 7, 1000)
    broker.script(MetadataRequest, leads(other, broker))
    cluster.metadata()
    cluster.fetch_ahead(TP, 7, 1000)
    other.script(FetchRequest, fetched(b"a"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    assert (offsets_asked(other), offsets_asked(broker)) == ([0], [])


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        (1, OffsetOutOfRange, "OFFSET_OUT_OF_RANGE"),
        (74, LogChanged, "FENCED_LEADER_EPOCH"),
        (100, LogChanged, "UNKNOWN_TOPIC_ID"),
        (103, LogChanged, "INCONSISTENT_TOPIC_ID"),
        (29, RequestRefused, "TOPIC_AUTHORIZATION_FAILED"),
        (6, KafkaUnavailable, "NOT_LEADER"),
    ],
)
def test_errors_name_broker_topic_partition_offset(
    broker: ScriptedBroker, cluster: KafkaCluster, code: int, error: type[Exception], name: str
) -> None:
    broker.script(FetchRequest, fetched(error=code))
    with pytest.raises(error) as raised:
        cluster.fetch(TP, 7, 1000)
    for part in (name, f"127.0.0.1:{broker.port}", "orders", "partition 2", "offset 7"):
        assert part in str(raised.value)


def test_a_leader_that_moved_is_looked_up_again(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetched(error=6), lambda request, version: None, fetched(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"
    assert len(broker.of(MetadataRequest)) == 3


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x63rest"])
def test_something_that_is_not_kafka(broker: ScriptedBroker, cluster: KafkaCluster, answer: bytes) -> None:
    broker.script(ApiVersionsRequest, lambda request, version: answer)
    with pytest.raises(KafkaUnavailable, match=f"127.0.0.1:{broker.port}"):
        cluster.metadata()


def test_no_broker_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(KafkaUnavailable, match=f"127.0.0.1:{port}"):
        KafkaCluster(f"127.0.0.1:{port}", timeout_s=1).metadata()


def says_of_logins(*codes: int) -> Callable[[ScriptedBroker], None]:
    """PLAIN, and for each login the next of these codes; the last one stays."""

    def script(broker: ScriptedBroker) -> None:
        broker.script(
            SaslHandshakeRequest,
            lambda _, version: SaslHandshakeResponse(version=version, error_code=0, mechanisms=["PLAIN"]),
        )
        answers = [
            lambda _, version, code=code: SaslAuthenticateResponse(
                version=version, error_code=code, error_message="no" if code else None, auth_bytes=b""
            )
            for code in codes
        ]
        broker.script(SaslAuthenticateRequest, *answers)

    return script


PLAIN = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="shop", password="wrong")
SASL_AUTHENTICATION_FAILED = 58


def test_a_wrong_password_is_told_to_one_broker_once(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    for each in (broker, other):
        says_of_logins(SASL_AUTHENTICATION_FAILED)(each)
    servers = f"127.0.0.1:{broker.port},127.0.0.1:{other.port}"
    with KafkaCluster(servers, timeout_s=5, security=PLAIN) as cluster:
        for partition in range(3):
            with pytest.raises(AuthenticationRefused, match="shop"):
                cluster.fetch(TopicPartition("orders", partition), 0, 1000)
        with pytest.raises(AuthenticationRefused, match=f"127.0.0.1:{broker.port}.*shop"):
            cluster.metadata()
    assert [len(each.of(SaslAuthenticateRequest)) for each in (broker, other)] == [1, 0]


def test_who_was_let_in_before_goes_on(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    says_of_logins(0)(broker)
    says_of_logins(SASL_AUTHENTICATION_FAILED)(other)

    def each_leads_one(request: Any, version: int) -> Any:
        answer = leads(other, broker, partitions=(3, 2))(request, version)
        answer.topics[0].partitions[1].leader_id = 2
        return answer

    broker.script(MetadataRequest, each_leads_one)
    broker.script(FetchRequest, fetched(b"batches"))
    with KafkaCluster(f"127.0.0.1:{broker.port}", timeout_s=5, security=PLAIN) as cluster:
        for _ in range(2):
            with pytest.raises(AuthenticationRefused):
                cluster.fetch(TopicPartition("orders", 3), 0, 1000)
            assert cluster.fetch(TP, 0, 1000).records == b"batches"
    assert [len(each.of(SaslAuthenticateRequest)) for each in (broker, other)] == [1, 1]


def test_offsets_are_asked_with_one_request_per_broker(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, listed(12))
    assert cluster.offsets([TP], "latest") == {TP: 12}
    (asked,) = broker.of(ListOffsetsRequest)
    assert (asked.isolation_level, asked.topics[0].partitions[0].timestamp) == (1, -1)


def test_a_partition_without_leader_is_left_out_with_a_reason(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, listed(12))
    other = TopicPartition("orders", 9)
    answers = cluster.offset_answers([TP, other], "earliest")
    assert answers.offsets == {TP: 12}
    assert answers.errors.keys() == {other} and "orders partition 9" in answers.errors[other]


def test_offsets_refused_for_good_are_not_asked_again(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, listed(-1, error=29))
    reason = cluster.offset_answers([TP], "latest").errors[TP]
    assert reason.startswith(f"broker 127.0.0.1:{broker.port}: ") and "TOPIC_AUTHORIZATION_FAILED" in reason
    assert len(broker.of(ListOffsetsRequest)) == 1


def epoch_ended(epoch: int, end: int, error: int = 0) -> Callable[[Any, int], Any]:
    def answer(request: Any, version: int) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        told = {"leader_epoch": epoch} if version >= 1 else {}
        found = topic.EpochEndOffset(version=version, partition=2, error_code=error, end_offset=end, **told)
        return OffsetForLeaderEpochResponse(
            version=version, topics=[topic(version=version, topic="orders", partitions=[found])]
        )

    return answer


def test_where_an_epoch_ended(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_ended(3, 80))
    assert cluster.epoch_answers({TP: EpochQuestion(4, 7)}).ends == {TP: EpochEnd(3, 80)}
    (asked,) = broker.of(OffsetForLeaderEpochRequest)
    (partition,) = asked.topics[0].partitions
    assert (asked.replica_id, partition.leader_epoch, partition.current_leader_epoch) == (-2, 4, 7)
    broker.script(OffsetForLeaderEpochRequest, epoch_ended(-1, -1))
    assert cluster.epoch_answers({TP: EpochQuestion(4, 7)}).ends == {TP: EpochEnd(-1, -1)}
    assert cluster.epoch_answers({}).ends == {}


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_older_brokers_are_asked_in_their_own_words(version: int) -> None:
    broker = ScriptedBroker()
    broker.versions[OffsetForLeaderEpochRequest.API_KEY] = (0, version)
    broker.script(OffsetForLeaderEpochRequest, epoch_ended(4, 80))
    with KafkaCluster(f"127.0.0.1:{broker.port}", timeout_s=5) as cluster:
        assert cluster.epoch_answers({TP: EpochQuestion(4, 7)}).ends == {TP: EpochEnd(4, 80)}
        broker.script(OffsetForLeaderEpochRequest, epoch_ended(-1, -1))
        assert cluster.epoch_answers({TP: EpochQuestion(4, 7)}).ends == {TP: EpochEnd(-1, -1)}


def test_a_broker_that_does_not_serve_epochs_says_nothing(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_ended(-1, -1, error=31))
    assert cluster.epoch_answers({TP: EpochQuestion(4, 7)}) == EpochAnswers({TP: None})
    other = ScriptedBroker()
    del other.versions[OffsetForLeaderEpochRequest.API_KEY]
    with KafkaCluster(f"127.0.0.1:{other.port}", timeout_s=5) as stranger:
        assert stranger.epoch_answers({TP: EpochQuestion(4, 7)}) == EpochAnswers({TP: None})


def test_a_broker_with_another_leader_epoch_is_named(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_ended(-1, -1, error=74))
    answers = cluster.epoch_answers({TP: EpochQuestion(4, 7)})
    assert answers.ends == {} and "FENCED_LEADER_EPOCH" in answers.errors[TP]
    assert len(broker.of(OffsetForLeaderEpochRequest)) == 1


def test_group_offsets(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetCommitRequest, committed(16), committed(0))
    assert cluster.commit_group_offsets("headrace", {TP: 44}) == {}
    asked = broker.of(OffsetCommitRequest)[-1]
    assert (asked.group_id, asked.generation_id_or_member_epoch, asked.member_id) == ("headrace", -1, "")
    assert asked.topics[0].partitions[0].committed_offset == 44


def test_group_offsets_that_are_refused(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetCommitRequest, committed(30))
    assert cluster.commit_group_offsets("headrace", {TP: 44}) == {TP: "GROUP_AUTHORIZATION_FAILED"}


def fails(cluster: KafkaCluster, request: str = "Fetch") -> str:
    with pytest.raises(KafkaUnavailable, match=rf"\b{request}") as failure:
        cluster.fetch(TP, 0, 1000)
    return str(failure.value)


def test_a_leader_that_is_dead_costs_the_attempts_of_one_request_however_many_follow(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, leads(other, broker))
    other.script(FetchRequest, breaks_off)
    first = fails(cluster)
    assert f"127.0.0.1:{other.port}" in first
    assert len(other.of(FetchRequest)) == kafka_client.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]
    for _ in range(50):
        assert fails(cluster) == first, "one reason, said once for all partitions that it led"
    assert len(other.of(FetchRequest)) == kafka_client.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]
    assert not other.of(MetadataRequest), "who does not answer is not asked for metadata first"


def test_a_broker_that_was_dead_is_tried_once_after_a_while(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, leads(other, broker))
    other.script(FetchRequest, breaks_off)
    fails(cluster)
    asked = len(other.of(FetchRequest))
    clock.now_s += COOL_DOWN_S
    fails(cluster)
    fails(cluster)
    assert len(other.of(FetchRequest)) == asked + 1
    other.script(FetchRequest, fetched(b"x"))
    fails(cluster)
    clock.now_s += 2 * COOL_DOWN_S
    assert cluster.fetch(TP, 0, 1000).records == b"x"
    other.script(FetchRequest, breaks_off, fetched(b"y"))
    assert cluster.fetch(TP, 0, 1000).records == b"y", "after an answer it has all its attempts again"


def test_a_new_leader_is_asked_although_the_last_one_is_dead(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster
) -> None:
    broker.script(MetadataRequest, leads(other, broker))
    other.script(FetchRequest, breaks_off)
    fails(cluster)
    broker.script(MetadataRequest, leads(broker, other))
    broker.script(FetchRequest, fetched(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"


def test_a_cluster_of_which_nobody_answers_is_asked_four_times(
    broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(ApiVersionsRequest, breaks_off)
    for _ in range(10):
        fails(cluster, "ApiVersions")
    assert len(broker.of(ApiVersionsRequest)) == kafka_client.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_a_broker_that_answers_for_its_metadata_alone_is_as_good_as_dead(
    broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(FetchRequest, breaks_off)
    for _ in range(10):
        fails(cluster)
    assert len(broker.of(FetchRequest)) == kafka_client.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_a_broker_that_answers_with_errors_is_not_dead(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, breaks_off, breaks_off, breaks_off, fetched(error=6))
    fails(cluster, "NOT_LEADER")
    fails(cluster, "NOT_LEADER")
    assert len(broker.of(FetchRequest)) == 2 * kafka_client.ATTEMPTS
    broker.script(FetchRequest, breaks_off, breaks_off, breaks_off, fetched(error=29))
    with pytest.raises(RequestRefused):
        cluster.fetch(TP, 0, 1000)
    broker.script(FetchRequest, breaks_off, fetched(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"


def test_the_partitions_of_a_dead_broker_are_asked_together(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, leads(other, broker, partitions=range(100)))
    other.script(ApiVersionsRequest, breaks_off)
    asked = [TopicPartition("orders", n) for n in range(100)]
    answers = cluster.offset_answers(asked, "latest")
    assert not answers.offsets and set(answers.errors) == set(asked)
    assert len(other.of(ApiVersionsRequest)) == kafka_client.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_a_broker_that_throttles_is_left_alone_for_as_long_as_it_says(
    broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(FetchRequest, fetched(throttle_ms=700), fetched(b"x"))
    assert cluster.fetch(TP, 0, 1000).throttle_ms == 700
    clock.now_s += 0.5
    assert (cluster.fetch(TP, 0, 1000).throttle_ms, cluster.fetch(TP, 0, 1000).records) == (0, b"x")
    assert clock.slept == [pytest.approx(0.2)]
    broker.script(FetchRequest, fetched(throttle_ms=2**31 - 1))
    cluster.fetch(TP, 0, 1000)
    cluster.fetch(TP, 0, 1000)
    assert clock.slept[1:] == [THROTTLE_S_MAX]


def test_bootstrap_servers() -> None:
    assert parse_bootstrap_servers("a:1, b ,[::1]:9093") == (("a", 1), ("b", 9092), ("::1", 9093))
    for text in ("a:x", ":9092", "a:0"):
        with pytest.raises(ValueError, match=text):
            parse_bootstrap_servers(text)
    with pytest.raises(ValueError):
        KafkaCluster(" , ")
