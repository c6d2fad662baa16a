"""What the Kafka client says in the place of a message: what time heals is logged, the rest is raised."""

from __future__ import annotations

import logging
from typing import Any, Final

from confluent_kafka import KafkaError

from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import Options, error_text

logger = logging.getLogger(__name__)

REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._AUTHENTICATION,
        KafkaError._AUTO_OFFSET_RESET,  # comes only with options["auto.offset.reset"] = "error"
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors that time does not heal."""


def is_fatal(error: Any) -> bool:
    """Whether the Kafka client is at its end. It says so once, and gives nothing afterwards without saying anything.

    That another has the name of a static member comes as an event of this code, which `fatal()` denies.
    """
    return bool(error.code() == KafkaError._FATAL or error.fatal())


def refusal(error: Any, topic: str, *, group: str | None, options: Options) -> SourceUnavailable | None:
    """What is to be raised of an error, after which nothing will come any more; None if that is not so."""
    code = error.code()
    if is_fatal(error):
        return SourceUnavailable(f"the Kafka client cannot go on: {error_text(error)}", topic=topic)
    if code == KafkaError._MAX_POLL_EXCEEDED:
        logger.warning(
            "message took too long, the group gives it again; raise handling_timeout_s group=%s handling_timeout_s=%g",
            group,
            int(options["max.poll.interval.ms"]) / 1000,
        )
        return None
    if code in REFUSED and not (group is None and code == KafkaError.GROUP_AUTHORIZATION_FAILED):
        return SourceUnavailable(f"the brokers refuse: {error_text(error)}", topic=topic)
    logger.warning("not fetched, tried again topic=%s error=%s", topic, error_text(error))
    return None
