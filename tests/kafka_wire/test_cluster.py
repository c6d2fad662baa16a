"""The Kafka client with a scripted broker: requests, retries and errors."""

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

from headrace.kafka_wire import cluster as cluster_module
from headrace.kafka_wire.circuit_breaker import COOL_DOWN_S
from headrace.kafka_wire.cluster import (
    THROTTLE_S_MAX,
    AbortedTransaction,
    EpochEnd,
    EpochEndLookup,
    EpochQuery,
    KafkaCluster,
    PartitionMetadata,
)
from headrace.kafka_wire.connection import parse_bootstrap_servers
from headrace.kafka_wire.errors import (
    AuthenticationFailed,
    ErrorResponse,
    KafkaUnavailable,
    LogChanged,
    OffsetOutOfRange,
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
    """A broker that responds with functions of the request; unscripted requests get a default response."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.versions = {request.API_KEY: (0, version) for request, _, version in PAIRS}
        self.requested: list[Any] = []
        self.scripts: dict[int, list[Callable[[Any, int], Any]]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def script(self, request: Any, *responses: Callable[[Any, int], Any]) -> None:
        """Sets the next responses to this kind of request; the last one repeats."""
        self.scripts[request.API_KEY] = list(responses)

    def requests_of(self, request: Any) -> list[Any]:
        return [requested for requested in self.requested if type(requested) is request]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that stops waiting resets the connection, which is a normal end.
        with connection, contextlib.suppress(ConnectionError):
            while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
                frame = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                key, version = struct.unpack_from(">hh", frame)
                request = BY_KEY[key][0].decode(frame, version=version, header=True)
                self.requested.append(request)
                response = self._response(key, request, version)
                if response is None:
                    return
                if not isinstance(response, bytes):
                    response.with_header(correlation_id=request.header.correlation_id)
                    response = bytes(response.encode(header=True, framed=True))
                connection.sendall(response)

    def _response(self, key: int, request: Any, version: int) -> Any:
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
        return led_by(self)(request, version, error)

    def _coordinator(self, request: Any, version: int) -> Any:
        return FindCoordinatorResponse(version=version, error_code=0, node_id=1, host="127.0.0.1", port=self.port)


def led_by(leader: ScriptedBroker, *others: ScriptedBroker, partitions: Iterable[int] = (2,)) -> Callable[..., Any]:
    """Returns metadata of a cluster in which the first broker (node 1) leads all partitions."""

    def response(request: Any, version: int, error: int = 0) -> Any:
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

    return response


def disconnect(request: Any, version: int) -> None:
    return None


def fetch_response(
    records: bytes = b"", error: int = 0, aborted: tuple[tuple[int, int], ...] = (), throttle_ms: int = 0
) -> Callable[..., Any]:
    def response(request: Any, version: int) -> Any:
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

    return response


def offset_response(offset: int, error: int = 0) -> Callable[..., Any]:
    def response(request: Any, version: int) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        part = topic.ListOffsetsPartitionResponse(version=version, partition_index=2, error_code=error, offset=offset)
        return ListOffsetsResponse(version=version, topics=[topic(version=version, name="orders", partitions=[part])])

    return response


def commit_response(error: int) -> Callable[..., Any]:
    def response(request: Any, version: int) -> Any:
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        part = topic.OffsetCommitResponsePartition(version=version, partition_index=2, error_code=error)
        return OffsetCommitResponse(version=version, topics=[topic(version=version, name="orders", partitions=[part])])

    return response


@dataclass
class Clock:
    """A clock that only the test advances; `slept` are the requested sleeps in seconds."""

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


def test_metadata_returns_brokers_and_topics(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    found = cluster.metadata()
    assert found.cluster_id == "c" and found.brokers == {1: ("127.0.0.1", broker.port)}
    topic = found.topics["orders"]
    assert (topic.topic_id, topic.partitions, topic.error) == (str(TOPIC_ID), {2: PartitionMetadata(1, 5)}, "")
    (requested,) = broker.requests_of(MetadataRequest)
    assert requested.topics is None and requested.allow_auto_topic_creation is False


def test_missing_topic_has_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(MetadataRequest, lambda request, version: broker.metadata(request, version, error=3))
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cluster.metadata(["orders"]).topics["orders"].error


def test_fetch_sends_topic_id_and_leader_epoch(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"batches", aborted=((9, 40),)))
    fetched = cluster.fetch(TP, 41, 1000, topic_id=str(TOPIC_ID), leader_epoch=5)
    assert (fetched.records, fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (
        b"batches",
        90,
        80,
        3,
    )
    assert fetched.aborted == (AbortedTransaction(9, 40),) and fetched.broker == f"127.0.0.1:{broker.port}"
    (requested,) = broker.requests_of(FetchRequest)
    assert (requested.isolation_level, requested.session_epoch, requested.topics[0].topic_id) == (1, -1, TOPIC_ID)
    partition = requested.topics[0].partitions[0]
    assert (partition.partition, partition.fetch_offset, partition.current_leader_epoch) == (2, 41, 5)


def test_fetch_from_an_older_broker_uses_the_topic_name(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.versions[FetchRequest.API_KEY] = (4, 8)
    broker.script(FetchRequest, fetch_response(b"x"))
    assert cluster.fetch(TP, 0, 1000, topic_id=str(TOPIC_ID), leader_epoch=5).records == b"x"
    assert broker.requests_of(FetchRequest)[0].topics[0].topic == "orders"


def test_top_level_error_of_a_fetch_is_raised(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, lambda _, version: FetchResponse(version=version, error_code=29, responses=[]))
    with pytest.raises(ErrorResponse) as error:
        cluster.fetch(TP, 7, 1000)
    assert error.value.code == 29


def fetched_offsets(broker: ScriptedBroker) -> list[int]:
    return [requested.topics[0].partitions[0].fetch_offset for requested in broker.requests_of(FetchRequest)]


def test_broker_with_only_older_fetch_versions_is_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.versions[FetchRequest.API_KEY] = (0, 3)
    with pytest.raises(ErrorResponse, match=r"\b0\b.*\b3\b.*\b4\b.*\b13\b") as error:
        cluster.fetch(TP, 0, 1000, topic_id=str(TOPIC_ID))
    assert error.value.code == 35


def test_prefetched_request_is_not_sent_again(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"a"), fetch_response(b"b"), fetch_response(b"c"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.prefetch(TP, 7, 1000)
    cluster.prefetch(TP, 8, 1000)  # ignored: one early request at a time
    assert cluster.fetch(TP, 7, 1000).records == b"b"
    assert cluster.fetch(TP, 9, 1000).records == b"c"
    assert fetched_offsets(broker) == [0, 7, 9]


@pytest.mark.parametrize("differs", ["offset", "bytes", "epoch", "topic id", "partition"])
def test_prefetched_response_is_discarded_for_another_request(
    broker: ScriptedBroker, cluster: KafkaCluster, differs: str
) -> None:
    broker.script(MetadataRequest, led_by(broker, partitions=(2, 3)))
    broker.script(FetchRequest, fetch_response(b"a"), fetch_response(b"discarded"), fetch_response(b"c"))
    assert cluster.fetch(TP, 0, 1000, leader_epoch=5).records == b"a"
    cluster.prefetch(TP, 7, 1000, leader_epoch=5)
    other = TopicPartition("orders", 3) if differs == "partition" else TP
    fetched = cluster.fetch(
        other,
        8 if differs == "offset" else 7,
        2000 if differs == "bytes" else 1000,
        leader_epoch=4 if differs == "epoch" else 5,
        topic_id=str(uuid.UUID(int=78)) if differs == "topic id" else "",
    )
    assert fetched.records == b"c"
    assert len(broker.requests_of(FetchRequest)) == 3


def test_other_api_is_answered_after_a_prefetched_request(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"a"), fetch_response(b"b"), fetch_response(b"c"))
    broker.script(ListOffsetsRequest, offset_response(12))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.prefetch(TP, 7, 1000)
    assert cluster.offsets([TP], "latest") == {TP: 12}
    assert cluster.fetch(TP, 7, 1000).records == b"c", "the early response was discarded"


def test_prefetch_is_retried_after_a_disconnect(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"a"), disconnect, fetch_response(b"b"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.prefetch(TP, 7, 1000)
    assert cluster.fetch(TP, 7, 1000).records == b"b"
    assert fetched_offsets(broker) == [0, 7, 7]


def test_error_of_a_prefetch_is_raised_by_the_fetch(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"a"), fetch_response(error=100))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    cluster.prefetch(TP, 7, 1000)
    with pytest.raises(LogChanged, match="UNKNOWN_TOPIC_ID"):
        cluster.fetch(TP, 7, 1000)
    assert fetched_offsets(broker) == [0, 7]


def test_expected_topics_are_in_one_metadata_request(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(b"a"))
    cluster.expect_topics(["users", "orders", "pages"])
    cluster.fetch(TP, 0, 1000)
    assert [[topic.name for topic in requested.topics] for requested in broker.requests_of(MetadataRequest)] == [
        ["orders", "pages", "users"]
    ]


def test_prefetch_does_nothing_without_a_connection(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster
) -> None:
    cluster.prefetch(TP, 7, 1000)
    broker.script(MetadataRequest, led_by(other, broker))
    cluster.metadata()
    cluster.prefetch(TP, 7, 1000)
    other.script(FetchRequest, fetch_response(b"a"))
    assert cluster.fetch(TP, 0, 1000).records == b"a"
    assert (fetched_offsets(other), fetched_offsets(broker)) == ([0], [])


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        (1, OffsetOutOfRange, "OFFSET_OUT_OF_RANGE"),
        (74, LogChanged, "FENCED_LEADER_EPOCH"),
        (100, LogChanged, "UNKNOWN_TOPIC_ID"),
        (103, LogChanged, "INCONSISTENT_TOPIC_ID"),
        (29, ErrorResponse, "TOPIC_AUTHORIZATION_FAILED"),
        (6, KafkaUnavailable, "NOT_LEADER"),
    ],
)
def test_fetch_error_names_broker_topic_partition_and_offset(
    broker: ScriptedBroker, cluster: KafkaCluster, code: int, error: type[Exception], name: str
) -> None:
    broker.script(FetchRequest, fetch_response(error=code))
    with pytest.raises(error) as raised:
        cluster.fetch(TP, 7, 1000)
    for part in (name, f"127.0.0.1:{broker.port}", "orders", "partition 2", "offset 7"):
        assert part in str(raised.value)


def test_moved_leader_is_found_with_new_metadata(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, fetch_response(error=6), lambda request, version: None, fetch_response(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"
    assert len(broker.requests_of(MetadataRequest)) == 3


@pytest.mark.parametrize("response", [b"HTTP/1.1 400 Bad Request\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x63rest"])
def test_response_that_is_not_kafka_is_an_error(broker: ScriptedBroker, cluster: KafkaCluster, response: bytes) -> None:
    broker.script(ApiVersionsRequest, lambda request, version: response)
    with pytest.raises(KafkaUnavailable, match=f"127.0.0.1:{broker.port}"):
        cluster.metadata()


def test_unreachable_broker_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(KafkaUnavailable, match=f"127.0.0.1:{port}"):
        KafkaCluster(f"127.0.0.1:{port}", timeout_s=1).metadata()


def script_logins(*codes: int) -> Callable[[ScriptedBroker], None]:
    """Scripts PLAIN logins that return these codes in order; the last one repeats."""

    def script(broker: ScriptedBroker) -> None:
        broker.script(
            SaslHandshakeRequest,
            lambda _, version: SaslHandshakeResponse(version=version, error_code=0, mechanisms=["PLAIN"]),
        )
        responses = [
            lambda _, version, code=code: SaslAuthenticateResponse(
                version=version, error_code=code, error_message="no" if code else None, auth_bytes=b""
            )
            for code in codes
        ]
        broker.script(SaslAuthenticateRequest, *responses)

    return script


PLAIN = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="shop", password="wrong")
SASL_AUTHENTICATION_FAILED = 58


def test_wrong_password_is_sent_once_to_one_broker(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    for each in (broker, other):
        script_logins(SASL_AUTHENTICATION_FAILED)(each)
    servers = f"127.0.0.1:{broker.port},127.0.0.1:{other.port}"
    with KafkaCluster(servers, timeout_s=5, security=PLAIN) as cluster:
        for partition in range(3):
            with pytest.raises(AuthenticationFailed, match="shop"):
                cluster.fetch(TopicPartition("orders", partition), 0, 1000)
        with pytest.raises(AuthenticationFailed, match=f"127.0.0.1:{broker.port}.*shop"):
            cluster.metadata()
    assert [len(each.requests_of(SaslAuthenticateRequest)) for each in (broker, other)] == [1, 0]


def test_existing_connection_works_after_a_failed_login_elsewhere(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    script_logins(0)(broker)
    script_logins(SASL_AUTHENTICATION_FAILED)(other)

    def each_leads_one(request: Any, version: int) -> Any:
        response = led_by(other, broker, partitions=(3, 2))(request, version)
        response.topics[0].partitions[1].leader_id = 2
        return response

    broker.script(MetadataRequest, each_leads_one)
    broker.script(FetchRequest, fetch_response(b"batches"))
    with KafkaCluster(f"127.0.0.1:{broker.port}", timeout_s=5, security=PLAIN) as cluster:
        for _ in range(2):
            with pytest.raises(AuthenticationFailed):
                cluster.fetch(TopicPartition("orders", 3), 0, 1000)
            assert cluster.fetch(TP, 0, 1000).records == b"batches"
    assert [len(each.requests_of(SaslAuthenticateRequest)) for each in (broker, other)] == [1, 1]


def test_offsets_need_one_request_per_broker(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, offset_response(12))
    assert cluster.offsets([TP], "latest") == {TP: 12}
    (requested,) = broker.requests_of(ListOffsetsRequest)
    assert (requested.isolation_level, requested.topics[0].partitions[0].timestamp) == (1, -1)


def test_partition_without_leader_has_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, offset_response(12))
    other = TopicPartition("orders", 9)
    responses = cluster.lookup_offsets([TP, other], "earliest")
    assert responses.offsets == {TP: 12}
    assert responses.errors.keys() == {other} and "orders partition 9" in responses.errors[other]


def test_permanent_offset_error_is_not_retried(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(ListOffsetsRequest, offset_response(-1, error=29))
    reason = cluster.lookup_offsets([TP], "latest").errors[TP]
    assert reason.startswith(f"broker 127.0.0.1:{broker.port}: ") and "TOPIC_AUTHORIZATION_FAILED" in reason
    assert len(broker.requests_of(ListOffsetsRequest)) == 1


def epoch_end_response(epoch: int, end: int, error: int = 0, partition: int = 2) -> Callable[[Any, int], Any]:
    def response(request: Any, version: int) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        epoch_fields = {"leader_epoch": epoch} if version >= 1 else {}
        found = topic.EpochEndOffset(
            version=version, partition=partition, error_code=error, end_offset=end, **epoch_fields
        )
        return OffsetForLeaderEpochResponse(
            version=version, topics=[topic(version=version, topic="orders", partitions=[found])]
        )

    return response


def test_partition_missing_in_the_response_has_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(3, 80, partition=5))
    found = cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)})
    assert found.ends == {}
    assert found.errors == {TP: f"broker 127.0.0.1:{broker.port}: its response lacks the partition"}

    def offset_of_another_partition(request: Any, version: int) -> Any:
        response = offset_response(12)(request, version)
        response.topics[0].partitions[0].partition_index = 5
        return response

    broker.script(ListOffsetsRequest, offset_of_another_partition)
    offsets = cluster.lookup_offsets([TP], "latest")
    assert (offsets.offsets, set(offsets.errors)) == ({}, {TP})


def test_epoch_without_an_end_is_returned_as_it_is(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    """The log has the epoch, so it does not count as missing."""
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(3, -1))
    assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}).ends == {TP: EpochEnd(3, -1)}


def test_epoch_end_is_returned(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(3, 80))
    assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}).ends == {TP: EpochEnd(3, 80)}
    (requested,) = broker.requests_of(OffsetForLeaderEpochRequest)
    (partition,) = requested.topics[0].partitions
    assert (requested.replica_id, partition.leader_epoch, partition.current_leader_epoch) == (-2, 4, 7)
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(-1, -1))
    assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}).ends == {TP: EpochEnd(-1, -1)}
    assert cluster.lookup_epoch_ends({}).ends == {}


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_epoch_ends_from_older_brokers(version: int) -> None:
    broker = ScriptedBroker()
    broker.versions[OffsetForLeaderEpochRequest.API_KEY] = (0, version)
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(4, 80))
    with KafkaCluster(f"127.0.0.1:{broker.port}", timeout_s=5) as cluster:
        assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}).ends == {TP: EpochEnd(4, 80)}
        broker.script(OffsetForLeaderEpochRequest, epoch_end_response(-1, -1))
        assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}).ends == {TP: EpochEnd(-1, -1)}


def test_epoch_end_is_none_if_the_broker_does_not_support_it(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(-1, -1, error=31))
    assert cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}) == EpochEndLookup({TP: None})
    other = ScriptedBroker()
    del other.versions[OffsetForLeaderEpochRequest.API_KEY]
    with KafkaCluster(f"127.0.0.1:{other.port}", timeout_s=5) as other_cluster:
        assert other_cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)}) == EpochEndLookup({TP: None})


def test_epoch_lookup_with_an_old_leader_epoch_is_an_error(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetForLeaderEpochRequest, epoch_end_response(-1, -1, error=74))
    responses = cluster.lookup_epoch_ends({TP: EpochQuery(4, 7)})
    assert responses.ends == {} and "FENCED_LEADER_EPOCH" in responses.errors[TP]
    assert len(broker.requests_of(OffsetForLeaderEpochRequest)) == 1


def test_group_offsets_are_committed(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetCommitRequest, commit_response(16), commit_response(0))
    assert cluster.commit_group_offsets("headrace", {TP: 44}) == {}
    requested = broker.requests_of(OffsetCommitRequest)[-1]
    assert (requested.group_id, requested.generation_id_or_member_epoch, requested.member_id) == ("headrace", -1, "")
    assert requested.topics[0].partitions[0].committed_offset == 44


def test_rejected_group_offsets_are_returned(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(OffsetCommitRequest, commit_response(30))
    assert cluster.commit_group_offsets("headrace", {TP: 44}) == {TP: "GROUP_AUTHORIZATION_FAILED"}


def fetch_error(cluster: KafkaCluster, request: str = "Fetch") -> str:
    with pytest.raises(KafkaUnavailable, match=rf"\b{request}") as failure:
        cluster.fetch(TP, 0, 1000)
    return str(failure.value)


def test_dead_leader_costs_the_attempts_of_one_request(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, led_by(other, broker))
    other.script(FetchRequest, disconnect)
    first = fetch_error(cluster)
    assert f"127.0.0.1:{other.port}" in first
    assert len(other.requests_of(FetchRequest)) == cluster_module.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]
    for _ in range(50):
        assert fetch_error(cluster) == first, "the same error for all its partitions"
    assert len(other.requests_of(FetchRequest)) == cluster_module.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]
    assert not other.requests_of(MetadataRequest), "a failing broker is not the first for metadata"


def test_suspended_broker_gets_one_trial_after_the_cool_down(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, led_by(other, broker))
    other.script(FetchRequest, disconnect)
    fetch_error(cluster)
    requested = len(other.requests_of(FetchRequest))
    clock.now_s += COOL_DOWN_S
    fetch_error(cluster)
    fetch_error(cluster)
    assert len(other.requests_of(FetchRequest)) == requested + 1
    other.script(FetchRequest, fetch_response(b"x"))
    fetch_error(cluster)
    clock.now_s += 2 * COOL_DOWN_S
    assert cluster.fetch(TP, 0, 1000).records == b"x"
    other.script(FetchRequest, disconnect, fetch_response(b"y"))
    assert cluster.fetch(TP, 0, 1000).records == b"y", "a response restores all attempts"


def test_new_leader_is_used_after_the_old_one_died(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster
) -> None:
    broker.script(MetadataRequest, led_by(other, broker))
    other.script(FetchRequest, disconnect)
    fetch_error(cluster)
    broker.script(MetadataRequest, led_by(broker, other))
    broker.script(FetchRequest, fetch_response(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"


def test_unresponsive_cluster_is_tried_for_one_request(
    broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(ApiVersionsRequest, disconnect)
    for _ in range(10):
        fetch_error(cluster, "ApiVersions")
    assert len(broker.requests_of(ApiVersionsRequest)) == cluster_module.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_metadata_responses_do_not_reset_the_breaker(
    broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(FetchRequest, disconnect)
    for _ in range(10):
        fetch_error(cluster)
    assert len(broker.requests_of(FetchRequest)) == cluster_module.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_error_responses_reset_the_breaker(broker: ScriptedBroker, cluster: KafkaCluster) -> None:
    broker.script(FetchRequest, disconnect, disconnect, disconnect, fetch_response(error=6))
    fetch_error(cluster, "NOT_LEADER")
    fetch_error(cluster, "NOT_LEADER")
    assert len(broker.requests_of(FetchRequest)) == 2 * cluster_module.ATTEMPTS
    broker.script(FetchRequest, disconnect, disconnect, disconnect, fetch_response(error=29))
    with pytest.raises(ErrorResponse):
        cluster.fetch(TP, 0, 1000)
    broker.script(FetchRequest, disconnect, fetch_response(b"x"))
    assert cluster.fetch(TP, 0, 1000).records == b"x"


def test_partitions_of_a_dead_broker_share_its_attempts(
    broker: ScriptedBroker, other: ScriptedBroker, cluster: KafkaCluster, clock: Clock
) -> None:
    broker.script(MetadataRequest, led_by(other, broker, partitions=range(100)))
    other.script(ApiVersionsRequest, disconnect)
    requested = [TopicPartition("orders", n) for n in range(100)]
    responses = cluster.lookup_offsets(requested, "latest")
    assert not responses.offsets and set(responses.errors) == set(requested)
    assert len(other.requests_of(ApiVersionsRequest)) == cluster_module.ATTEMPTS
    assert clock.slept == [0.25, 0.5, 1.0]


def test_throttle_time_is_respected(broker: ScriptedBroker, cluster: KafkaCluster, clock: Clock) -> None:
    broker.script(FetchRequest, fetch_response(throttle_ms=700), fetch_response(b"x"))
    assert cluster.fetch(TP, 0, 1000).throttle_ms == 700
    clock.now_s += 0.5
    assert (cluster.fetch(TP, 0, 1000).throttle_ms, cluster.fetch(TP, 0, 1000).records) == (0, b"x")
    assert clock.slept == [pytest.approx(0.2)]
    broker.script(FetchRequest, fetch_response(throttle_ms=2**31 - 1))
    cluster.fetch(TP, 0, 1000)
    cluster.fetch(TP, 0, 1000)
    assert clock.slept[1:] == [THROTTLE_S_MAX]


def test_bootstrap_servers_are_parsed() -> None:
    assert parse_bootstrap_servers("a:1, b ,[::1]:9093") == (("a", 1), ("b", 9092), ("::1", 9093))
    for text in ("a:x", ":9092", "a:0"):
        with pytest.raises(ValueError, match=text):
            parse_bootstrap_servers(text)
    with pytest.raises(ValueError):
        KafkaCluster(" , ")
