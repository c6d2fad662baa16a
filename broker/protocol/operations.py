"""What a client may do with a topic, a group or the cluster, as answers that are asked for it say (KIP-430).

Where there are no users, everybody may do everything that there is to do.
"""

from __future__ import annotations

from collections.abc import Set

from headrace.broker.access.rights import Kind, Right, Rights

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(
    3, 13
)
"""Kafka's numbers of operations, in their order."""

TOPIC = frozenset({READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS})
GROUP = frozenset({READ, DELETE, DESCRIBE})
CLUSTER = frozenset({CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE})

_BY_RIGHT = {Right.READ: frozenset({READ, DESCRIBE}), Right.WRITE: frozenset({WRITE, CREATE, DESCRIBE})}


def of_topic(rights: Rights, name: str) -> Set[int]:
    """What these rights allow with a topic."""
    return _allowed(rights.on(Kind.TOPIC, name), TOPIC)


def of_group(rights: Rights, group_id: str) -> Set[int]:
    """What these rights allow with a group."""
    return _allowed(rights.on(Kind.GROUP, group_id), GROUP)


def of_cluster(rights: Rights) -> Set[int]:
    """What these rights allow with the broker itself."""
    return CLUSTER if rights.is_admin else frozenset({DESCRIBE, IDEMPOTENT_WRITE})


def _allowed(given: Set[Right], everything: Set[int]) -> Set[int]:
    if Right.ADMIN in given:
        return everything
    return everything & {operation for right in given for operation in _BY_RIGHT[right]}
