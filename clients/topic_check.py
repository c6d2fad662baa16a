"""Checks that messages can be sent to a topic before a schema is registered for it: a registered schema would remain
after the brokers have rejected the topic."""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from headrace.clients.errors import TopicRefused
from headrace.kafka_wire.cluster import KafkaCluster, TopicMetadata
from headrace.kafka_wire.errors import KafkaError as WireError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.settings import Settings
from headrace.settings.addresses import resolve_bootstrap_servers

logger = logging.getLogger(__name__)

VALID_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule for topic names."""

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE = 3, 5
CREATION_TIMEOUT_S: Final = 5.0
"""How long to wait for brokers that create missing topics for producers."""

BETWEEN_REQUESTS_S: Final = 0.1
REQUEST_TIMEOUT_S: Final = 5.0
CHECKED_TOPICS_MAX: Final = 100_000


class TopicCheck:
    """Checks each topic of one producer once. Thread-safe.

    Args:
        settings: addresses and credentials of the brokers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._checked: set[str] = set()

    def check(self, topic: str) -> None:
        """Creates the topic, if the brokers do that for producers. Logs a failure to reach the brokers, which
        librdkafka retries when the message is sent.

        Raises:
            TopicRefused: messages cannot be sent to the topic.
        """
        if topic in self._checked:
            return
        if VALID_NAME.fullmatch(topic) is None:
            raise TopicRefused(
                f"topic {topic!r:.80}: the name is invalid; expected 1 to 249 letters (A-Z, a-z), digits, '.', '_' and "
                "'-', and not '.' or '..'",
                topic=topic,
            )
        try:
            problem = self._problem(topic)
        except WireError as error:
            logger.warning("topic not checked topic=%s error=%s", topic, error)
            return
        if problem:
            raise TopicRefused(f"topic {topic}: {problem}", topic=topic)
        if len(self._checked) >= CHECKED_TOPICS_MAX:
            self._checked.clear()
        self._checked.add(topic)

    def _problem(self, topic: str) -> str:
        servers = resolve_bootstrap_servers(self._settings)
        deadline = time.monotonic() + CREATION_TIMEOUT_S
        with KafkaCluster(servers, REQUEST_TIMEOUT_S, security=kafka_security(self._settings)) as cluster:
            while True:
                found = cluster.topic_for_producing(topic)
                if found.error_code != UNKNOWN_TOPIC:
                    return _problem(found)
                if time.monotonic() > deadline:
                    return "it does not exist, and the brokers do not create it; create it first"
                time.sleep(BETWEEN_REQUESTS_S)


def _problem(found: TopicMetadata) -> str:
    if found.error and found.error_code != LEADER_NOT_AVAILABLE:  # a leader may be elected before the message expires
        return f"the brokers reject it: {found.error}"
    if found.may_write is False:
        return "the brokers reject messages of this client: it has no permission to write (WRITE) to the topic"
    return ""
