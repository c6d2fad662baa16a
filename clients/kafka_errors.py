"""Handles errors of the Kafka client and of callbacks: they are raised, logged, or deferred.

Exceptions of callbacks are deferred until the fetched messages are buffered. If a callback raises, `consume` and `poll`
of confluent-kafka raise instead of returning. The messages that they had taken from their queue would be lost, and a
commit of later messages would skip them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError

from headrace.clients.errors import SourceUnavailable
from headrace.clients.kafka_client import Options, error_text

logger = logging.getLogger(__name__)


PERMANENT_ERRORS: Final = frozenset(
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
"""Error codes after which the consumer raises an error, because a retry would fail, too. (GROUP_AUTHORIZATION_FAILED
only if the consumer has a group.)"""


DAMAGE_ERRORS: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,
    }
)
"""Error codes with which the client reports a batch that it cannot read, at the offset of the message. It fetches the
batch again and again."""


def log_exceptions(function: Callable[..., object], name: str) -> Callable[..., None]:
    """Returns a wrapper that logs exceptions of the function instead of raising them. It is for callbacks with a caller
    that cannot handle the exception.

    Args:
        name: name of the callback in the log.
    """

    def called(*args: Any) -> None:
        try:
            function(*args)
        except BaseException:  # including `sys.exit`, which would end a shared thread
            logger.exception("%s failed", name)

    return called


class DeferredErrors:
    """Stores an exception of a callback until it can be raised; logs further ones. Not thread-safe."""

    def __init__(self) -> None:
        self._first: BaseException | None = None

    def wrap(self, function: Callable[..., object]) -> Callable[..., None]:
        """Returns a wrapper of the function that stores its exceptions here instead of raising them."""

        def wrapped(*args: Any) -> None:
            try:
                function(*args)
            except BaseException as error:
                self.add(error)

        return wrapped

    def add(self, error: BaseException) -> None:
        if self._first is None:
            self._first = error
        else:
            logger.warning(
                "a callback failed after an earlier callback error, which will be raised error=%s", error_text(error)
            )

    def raise_first(self) -> None:
        """Raises the first exception that was stored since the last call, if there is one."""
        error, self._first = self._first, None
        if error is not None:
            raise error


def is_fatal(error: Any) -> bool:
    """Returns whether this error means that the Kafka client has failed for good. The client reports such an error
    once, and returns no messages afterwards.

    A second static member with the same name is reported with the code _FATAL, although `fatal()` is false.
    """
    return bool(error.code() == KafkaError._FATAL or error.fatal())


def error_to_raise(error: Any, topic: str, *, group: str | None, options: Options) -> SourceUnavailable | None:
    """Returns the exception that the consumer raises for an error of the Kafka client. Logs an error from which the
    client itself recovers, and returns None.

    Args:
        topic: topic that the error concerns, "" if unknown.
        group: the consumer's group, None without one.
        options: the consumer's options of librdkafka.
    """
    code = error.code()
    if is_fatal(error):
        return SourceUnavailable(f"the Kafka client failed: {error_text(error)}", topic=topic)
    if code == KafkaError._MAX_POLL_EXCEEDED:
        logger.warning(
            "message not processed in time, another member of the group reads it again; raise handling_timeout_s "
            "group=%s handling_timeout_s=%g",
            group,
            int(options["max.poll.interval.ms"]) / 1000,
        )
        return None
    if code in PERMANENT_ERRORS and not (group is None and code == KafkaError.GROUP_AUTHORIZATION_FAILED):
        return SourceUnavailable(f"the brokers reject the request: {error_text(error)}", topic=topic)
    logger.warning("fetch failed, retrying topic=%s error=%s", topic, error_text(error))
    return None
