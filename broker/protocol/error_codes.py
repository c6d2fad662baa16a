"""The Kafka error codes that this broker knows: name, code, retriable, meaning."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """An error code of Kafka. Each row: its number, whether clients retry the request after this error, and its
    meaning."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool, meaning: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "unexpected error in the broker; see its log"
    NONE = 0, False, ""
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is outside the range the log holds"
    CORRUPT_MESSAGE = 2, True, "the record batch fails its checksum or is malformed"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "there is no such topic or partition"
    MESSAGE_TOO_LARGE = 10, False, "the record batch is larger than the topic allows"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of a committed offset is too long"
    COORDINATOR_NOT_AVAILABLE = 15, True, "the log of groups or transactions cannot be written"
    INVALID_TOPIC = 17, False, "the topic name is not allowed"
    INVALID_REQUIRED_ACKS = 21, False, "acks is neither -1, 0 nor 1"
    ILLEGAL_GENERATION = 22, False, "the generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the member's protocols do not match the group's"
    INVALID_GROUP_ID = 24, False, "the group id is not allowed"
    UNKNOWN_MEMBER_ID = 25, False, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is outside the allowed range"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing; join again"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "the user lacks the permission on the topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "the user lacks the permission on the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "the user lacks the permission on the broker"
    INVALID_TIMESTAMP = 32, False, "a record's timestamp is outside the range that the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the SASL mechanism is not supported"
    ILLEGAL_SASL_STATE = 34, False, "this broker requires no login, or the connection is already logged in"
    UNSUPPORTED_VERSION = 35, False, "this version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not allowed"
    INVALID_REPLICATION_FACTOR = 38, False, "a single node has one replica per partition"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "replicas can only be assigned to this node"
    INVALID_CONFIG = 40, False, "a configuration value is not allowed"
    INVALID_REQUEST = 42, False, "the request contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "record batches older than version 2 are not stored"
    POLICY_VIOLATION = 44, False, "the request exceeds a limit of this broker"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the producer's sequence number does not follow the last one"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the producer's sequence number was already appended"
    INVALID_PRODUCER_EPOCH = 47, False, "a newer instance of this producer has replaced it"
    INVALID_TXN_STATE = 48, False, "the transaction's state does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the transactional id belongs to another producer id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout is too long"
    CONCURRENT_TRANSACTIONS = 51, True, "the producer's previous transaction is still being completed"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "the user lacks the permission on the transactional id"
    SECURITY_DISABLED = 54, False, "the broker has no access control lists; its users file grants permissions"
    OPERATION_NOT_ATTEMPTED = 55, False, "another part of the request was refused"
    STORAGE_ERROR = 56, True, "the disk failed or is full"
    LOG_DIR_NOT_FOUND = 57, False, "there is no such log directory; DescribeLogDirs returns the only one"
    SASL_AUTHENTICATION_FAILED = 58, False, "the client failed to authenticate"
    NON_EMPTY_GROUP = 68, False, "the group has members"
    GROUP_ID_NOT_FOUND = 69, False, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "the fetch session does not exist; start another one"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session epoch is not the next one"
    FENCED_LEADER_EPOCH = 74, True, "the client's leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the client's leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the codec of the record batch is unknown"
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id of this response"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group has reached its maximum number of members"
    FENCED_INSTANCE_ID = 82, False, "another member has replaced this group instance id"
    ELECTION_NOT_NEEDED = 84, False, "a single node leads every partition"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "a member of the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "the records are not valid for this topic"
    UNSTABLE_OFFSET_COMMIT = 88, True, "an open transaction will commit an offset; retry"
    PRODUCER_FENCED = 90, False, "a newer producer uses the transactional id"
    UNKNOWN_TOPIC_ID = 100, True, "there is no topic with this id"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic names and topic ids"
    FENCED_MEMBER_EPOCH = 110, False, "the member's epoch is not its current one; join again"
    UNRELEASED_INSTANCE_ID = 111, False, "a member that has not left uses this group instance id"
    UNSUPPORTED_ASSIGNOR = 112, False, "there is no such server-side assignor"
    STALE_MEMBER_EPOCH = 113, False, "the member has a newer epoch"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "only broker endpoints are listed"
    TRANSACTION_ABORTABLE = 120, False, "the transaction must be aborted; then the producer may continue"
    INVALID_REGULAR_EXPRESSION = 128, False, "the topic pattern is invalid"
