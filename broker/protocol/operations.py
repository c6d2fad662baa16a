"""What a client may do with a topic, a group or the cluster, as answers that are asked for it say (KIP-430).

Everybody may do everything that there is to do.
"""

from __future__ import annotations

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(
    3, 13
)
"""Kafka's numbers of operations, in their order."""

TOPIC = frozenset({READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS})
GROUP = frozenset({READ, DELETE, DESCRIBE})
CLUSTER = frozenset({CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE})
