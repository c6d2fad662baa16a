"""The advertised versions of each Kafka API: one row per API key.

Clients use the highest version of a row that they know. If a row had no handler, they would retry until their timeout;
so every row has one (a test compares the two tables). APIs without a handler are not listed, among them telemetry (71,
72), share groups and streams groups, and WriteTxnMarkers (27). The versions for transactions of version 2 (KIP-890) are
not listed either, nor is the feature announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The versions of one API. `lowest` to `highest`, both inclusive, are advertised to clients. Those below
    `served_from` are advertised but refused.

    From `flexible_from` on, requests and responses use compact encodings: request header version 2, response header
    version 1. Responses of the API ApiVersions always have header version 0.
    """

    key: int
    name: str
    lowest: int
    highest: int
    flexible_from: int
    served_from: int = -1

    def serves(self, version: int) -> bool:
        return self.lowest <= version <= self.highest and version >= self.served_from

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


NEVER = 1000  # `flexible_from` of an API without flexible versions

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 11, 12, 13, 14, 15, 16
SASL_HANDSHAKE, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 17, 18, 19, 20, 21
INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 22, 23
DESCRIBE_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS, INCREMENTAL_ALTER_CONFIGS = 32, 37, 42, 44
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, ALTER_CONFIGS = 29, 30, 31, 33
ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35
SASL_AUTHENTICATE, OFFSET_DELETE, DESCRIBE_CLUSTER = 36, 47, 60
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
ELECT_LEADERS, DESCRIBE_TOPIC_PARTITIONS = 43, 75
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69

ROWS = (
    # Produce is advertised from version 0, although only record batches of version 2 (Produce 3 and later) are stored.
    # Older librdkafka silently disables compression when the range starts above 0 (KAFKA-18659).
    ApiVersions(PRODUCE, "Produce", 0, 12, 9, served_from=3),
    ApiVersions(FETCH, "Fetch", 4, 17, 12),
    ApiVersions(LIST_OFFSETS, "ListOffsets", 1, 9, 6),
    ApiVersions(METADATA, "Metadata", 0, 12, 9),
    ApiVersions(OFFSET_COMMIT, "OffsetCommit", 2, 9, 8),
    ApiVersions(OFFSET_FETCH, "OffsetFetch", 1, 9, 6),
    ApiVersions(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    ApiVersions(JOIN_GROUP, "JoinGroup", 0, 9, 6),
    ApiVersions(HEARTBEAT, "Heartbeat", 0, 4, 4),
    ApiVersions(LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
    ApiVersions(SYNC_GROUP, "SyncGroup", 0, 5, 4),
    ApiVersions(DESCRIBE_GROUPS, "DescribeGroups", 0, 5, 5),
    ApiVersions(LIST_GROUPS, "ListGroups", 0, 5, 3),
    ApiVersions(SASL_HANDSHAKE, "SaslHandshake", 1, 1, NEVER),
    ApiVersions(API_VERSIONS, "ApiVersions", 0, 4, 3),
    ApiVersions(CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    ApiVersions(DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
    ApiVersions(DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
    ApiVersions(INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
    ApiVersions(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    ApiVersions(ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 3, 3),
    ApiVersions(ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 3, 3),
    ApiVersions(END_TXN, "EndTxn", 0, 3, 3),
    ApiVersions(TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 3, 3),
    ApiVersions(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
    ApiVersions(CREATE_ACLS, "CreateAcls", 1, 3, 2),
    ApiVersions(DELETE_ACLS, "DeleteAcls", 1, 3, 2),
    ApiVersions(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    ApiVersions(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
    ApiVersions(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2),
    ApiVersions(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2),
    ApiVersions(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
    ApiVersions(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
    ApiVersions(DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
    ApiVersions(ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
    ApiVersions(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
    ApiVersions(OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER),
    ApiVersions(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    ApiVersions(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
    ApiVersions(DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
    ApiVersions(LIST_TRANSACTIONS, "ListTransactions", 0, 1, 0),
    ApiVersions(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0),
    ApiVersions(CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0),
    ApiVersions(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
)

BY_KEY: Mapping[int, ApiVersions] = {row.key: row for row in ROWS}

GROUP_MEMBER_APIS = frozenset(
    {
        *(FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, CONSUMER_GROUP_HEARTBEAT, LEAVE_GROUP),
        *(OFFSET_COMMIT, OFFSET_FETCH),
    }
)
"""APIs that members of a consumer group call to stay in the group and to read and commit its offsets; they are exempt
from throttling."""
