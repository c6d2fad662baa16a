"""Functions that producer and consumer share as clients of librdkafka: connecting, options and errors.

librdkafka retries connections for ever in its own threads, and creating a client succeeds without any broker.
Connections of `kafka_wire` therefore check beforehand that a broker responds and accepts the credentials. They are
retried until a timeout, but a wrong password is tried only once.
"""

from __future__ import annotations

import logging
import operator
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from headrace.clients.errors import error_line
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationFailed
from headrace.kafka_wire.errors import KafkaError as WireError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.kafka_wire.security import SecurityConfigError
from headrace.settings import Settings, SettingsError
from headrace.settings.addresses import resolve_bootstrap_servers

Options = Mapping[str, Any]
"""Options of librdkafka by their names in its CONFIGURATION.md, such as `queue.buffering.max.ms`."""

REPEAT_AFTER_S: Final = 30.0
REPEAT_TEXTS_MAX: Final = 1000


class _RepeatFilter(logging.Filter):
    """Log filter that suppresses a message for 30 seconds after it was logged: librdkafka logs every failed connection
    attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._seen_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, text = time.monotonic(), re.sub(r"\(after \d+ms.*", "", record.getMessage())
        if now - self._seen_at.get(text, float("-inf")) < REPEAT_AFTER_S:
            return False
        if len(self._seen_at) >= REPEAT_TEXTS_MAX:
            self._seen_at.clear()
        self._seen_at[text] = now
        return True


KAFKA_LOGGER: Final = logging.getLogger(__name__)
"""The logger to which librdkafka's messages are written."""
KAFKA_LOGGER.addFilter(_RepeatFilter())

Client = TypeVar("Client", Producer, Consumer)

WAIT_S_MAX: Final = 2_000_000.0
"""Longest time limit of a call, 23 days. Threads and the Kafka client cannot wait for much longer times."""

ATTEMPT_TIMEOUT_S: Final = 5.0
BETWEEN_ATTEMPTS_S: Final = 0.1


class BrokersUnreachable(Exception):
    """No broker responds, or the brokers reject the client; the message contains the remedy."""


def reach_brokers(settings: Settings, timeout_s: float) -> dict[str, Any]:
    """Waits until a broker responds, and returns librdkafka's options with the brokers' addresses and security.

    Raises:
        SettingsError: the settings contradict each other or name an unusable file.
        BrokersUnreachable: no broker responds within `timeout_s`, or the brokers reject the client.
    """
    options = broker_options(settings)
    security, servers = kafka_security(settings), options["bootstrap.servers"]
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            with KafkaCluster(servers, max(0.1, min(left_s, ATTEMPT_TIMEOUT_S)), security=security) as cluster:
                cluster.metadata(())
            break
        except AuthenticationFailed as error:
            raise BrokersUnreachable(str(error)) from error
        except WireError as error:
            if left_s <= BETWEEN_ATTEMPTS_S:
                raise BrokersUnreachable(
                    f"no Kafka broker responds at {servers} ({error}); start one, or set kafka.bootstrap_servers"
                ) from error
            time.sleep(BETWEEN_ATTEMPTS_S)
    return options


def broker_options(settings: Settings) -> dict[str, Any]:
    """Returns librdkafka's options with the brokers' addresses and security. Contacts no broker.

    Raises:
        SettingsError: the settings contradict each other or name an unusable file.
    """
    try:
        options = kafka_security(settings).librdkafka_options()
    except SecurityConfigError as error:
        raise SettingsError(str(error)) from error
    return {"bootstrap.servers": resolve_bootstrap_servers(settings), "reconnect.backoff.max.ms": 1000, **options}


def as_seconds(name: str, seconds: Any) -> float:
    """Returns a time limit that an application has passed. Infinity and other times of more than `WAIT_S_MAX` become
    `WAIT_S_MAX`, negative ones 0.

    Args:
        name: name of the argument, for the error.

    Raises:
        ValueError: it is not a number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != seconds:
        raise ValueError(f"expected {name} to be a number of seconds, found {type(seconds).__name__} {seconds!r:.60}")
    return float(min(max(seconds, 0), WAIT_S_MAX))


def as_ms(name: str, seconds: float, ms_max: int) -> int:
    """Returns a time limit of `seconds` as milliseconds for the Kafka client.

    Args:
        name: name of the argument that contains the time, for the error.
        ms_max: largest value that the Kafka client allows.

    Raises:
        ValueError: the time is longer than `ms_max`, or not a number.
    """
    as_seconds(name, seconds)
    if seconds * 1000 > ms_max:
        raise ValueError(f"{name}={seconds!s:.20}: the Kafka client allows at most {ms_max // 1000} s")
    return int(seconds * 1000)


def create_client(client: type[Client], config: dict[str, Any]) -> Client:
    """Creates a producer or consumer of confluent-kafka.

    Args:
        client: the class of the producer or consumer.
        config: options of librdkafka.

    Raises:
        ValueError: an option is invalid.
    """
    try:
        return client(config, logger=KAFKA_LOGGER)
    except KafkaException as error:
        text = error_text(error)
        if config.get("sasl.mechanism") == "GSSAPI":
            text += (
                "; for Kerberos, build confluent-kafka against a librdkafka with SASL: "
                "pip install --no-binary confluent-kafka confluent-kafka"
            )
        raise ValueError(f"the Kafka client rejects its options: {text}") from error


_BROKERS: Final = "brokers are contacted before the client is created; set kafka.bootstrap_servers in the settings"

REFUSED: Final = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "test.mock.num.brokers": "it would use simulated brokers",
    "default.topic.config": "pass its entries as separate options",
}
"""Options that neither client accepts from the application, with the reason or the remedy."""


def merge_options(defaults: dict[str, Any], given: Options | None, refused: Mapping[str, str]) -> dict[str, Any]:
    """Returns librdkafka's options for a client: `defaults`, overridden by the options that the application has
    `given`.

    Args:
        refused: options that the application may not set, because they would break a guarantee or be ignored: the
            reason by the option's name.

    Raises:
        ValueError: the application has set one of them, or one of `REFUSED`.
    """
    for name in given or ():
        reason = (REFUSED | dict(refused)).get(name.removeprefix("topic."))  # librdkafka accepts both names
        if reason is not None:
            raise ValueError(f"options[{name!r}] is not allowed: {reason}")
    return defaults | dict(given or {})


def message_headers(message: Message) -> list[tuple[str, Any]] | None:
    """Returns the headers of a message; None if a name is not UTF-8.

    For such a message, confluent-kafka 2.16 returns a list with a null pointer, which ends the process, and leaves an
    exception. The interpreter raises it as SystemError, but not in calls that it has specialized.
    """
    try:
        found = _CHECKED_HEADERS(message)
    except (SystemError, UnicodeDecodeError):
        found = _UNREADABLE_HEADERS
        message.set_headers(found)  # the next call returns it
    return None if found is _UNREADABLE_HEADERS else found or []


_CHECKED_HEADERS: Final[Callable[[Message], Any]] = operator.methodcaller("headers")
_UNREADABLE_HEADERS: Final[list[Any]] = []
"""Compared by identity."""


def error_text(error: object) -> str:
    """Returns a description of an error, of the Kafka client or any other, in one line."""
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if isinstance(cause, KafkaError):
        return f"{cause.name()}: {cause.str()}"
    return error_line(cause)
