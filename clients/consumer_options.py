"""What a consumer asks of librdkafka, by what its application asked of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final

from headrace.clients.kafka_client import Options, as_ms, merged

SESSION_S: Final = 45.0
SESSION_S_MIN: Final = 6.0
"""Without a sign of life from its process for so long, a member is out of its group."""
HANDLING_MS_MAX: Final = 86_400_000
"""As librdkafka has it for `max.poll.interval.ms`."""

_COMMITS: Final = "it would commit what nobody has dealt with; give auto_commit to the consumer, or call commit()"

REFUSED: Final = {
    "group.id": "give group to the consumer",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.partition.eof": "where reading ends rests on it; give until_end to the consumer",
    "isolation.level": "what an aborted transaction wrote is not given out",
    "allow.auto.create.topics": "a consumer makes no topics",
}
"""Options that would break what is promised of commits, of where reading ends and of what is given out."""

CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "throttle_cb", "on_commit"})
"""Options that are functions of the application, called while the Kafka client is asked for messages."""


def names_of(topics: Iterable[str]) -> list[str]:
    """The topics to read, each once.

    Raises:
        ValueError: they are none, or not all names.
    """
    names = [] if isinstance(topics, str) else list(dict.fromkeys(topics))
    if not names or not all(isinstance(name, str) and name for name in names):
        found = topics if isinstance(topics, str) else names
        raise ValueError(f"expected topics to be a list of names, found {found!r}")
    return names


def consumer_options(
    *,
    app: str | None,
    group: str | None,
    member: str | None,
    from_end: bool,
    until_end: bool,
    handling_timeout_s: float,
    options: Options | None,
) -> dict[str, Any]:
    """For the arguments of `Consumer`, see there.

    Raises:
        ValueError: one of them cannot be had.
    """
    if group == "" or member == "":
        raise ValueError("group and member must not be empty")  # librdkafka ends the process over an empty group
    if handling_timeout_s < SESSION_S_MIN:
        raise ValueError(f"handling_timeout_s={handling_timeout_s:g}: brokers want {SESSION_S_MIN:g} s at least")
    ours = {
        "client.id": f"headrace-{app or 'consumer'}",
        # The Kafka client wants one; without a group of ours nothing is ever committed for it.
        "group.id": f"headrace-{secrets.token_hex(8)}" if group is None else group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": until_end,
        "auto.offset.reset": "latest" if from_end else "earliest",
        "allow.auto.create.topics": False,
        "max.poll.interval.ms": as_ms("handling_timeout_s", handling_timeout_s, HANDLING_MS_MAX),
        "session.timeout.ms": int(min(SESSION_S, handling_timeout_s) * 1000),
    }
    if member is not None:
        ours["group.instance.id"] = member
    return merged(ours, options, REFUSED)


def is_cooperative(options: Options) -> bool:
    """Whether members keep their partitions while the group shares out anew."""
    return "cooperative" in str(options.get("partition.assignment.strategy", ""))
