"""The operations that a client may perform on a topic, a group or the cluster (KIP-430, "authorized operations")."""

from __future__ import annotations

from collections.abc import Set

from headrace.broker.access.permissions import BrokerPermission, BrokerPermissions, ResourceType

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(
    3, 13
)
"""Kafka's numbers of operations."""

TOPIC = frozenset({READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS})
GROUP = frozenset({READ, DELETE, DESCRIBE})
CLUSTER = frozenset({CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE})

_BY_PERMISSION = {
    BrokerPermission.READ: frozenset({READ, DESCRIBE}),
    BrokerPermission.WRITE: frozenset({WRITE, CREATE, DESCRIBE}),
}


def topic_operations(permissions: BrokerPermissions, name: str) -> Set[int]:
    """Returns Kafka's numbers of the operations that these permissions of a user allow on a topic."""
    return _allowed(permissions.granted_on(ResourceType.TOPIC, name), TOPIC)


def group_operations(permissions: BrokerPermissions, group_id: str) -> Set[int]:
    """Returns Kafka's numbers of the operations that these permissions of a user allow on a group."""
    return _allowed(permissions.granted_on(ResourceType.GROUP, group_id), GROUP)


def cluster_operations(permissions: BrokerPermissions) -> Set[int]:
    """Returns Kafka's numbers of the operations that these permissions of a user allow on the cluster."""
    return CLUSTER if permissions.is_admin else frozenset({DESCRIBE, IDEMPOTENT_WRITE})


def _allowed(granted: Set[BrokerPermission], supported: Set[int]) -> Set[int]:
    if BrokerPermission.ADMIN in granted:
        return supported
    return supported & {operation for permission in granted for operation in _BY_PERMISSION[permission]}
