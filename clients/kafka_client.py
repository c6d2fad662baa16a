"""What producer and consumer have in common as clients of librdkafka: how brokers are reached, and what errors say.

librdkafka tries for ever, in threads of its own, and a client of it stands whether or not a broker does. So who
answers, and whether they let this client in, is found out before, by one connection of ours: a wrong password is tried
once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import AuthenticationRefused
from headrace.kafka_wire.errors import KafkaError as WireError
from headrace.kafka_wire.of_settings import kafka_security
from headrace.kafka_wire.security import UnusableSecurity
from headrace.settings import Settings, SettingsError
from headrace.settings.addresses import resolve_bootstrap_servers

Options = Mapping[str, Any]
"""Options of librdkafka by the names in its CONFIGURATION.md, such as `queue.buffering.max.ms`."""

SAID_AGAIN_S: Final = 30.0
SAID_MAX: Final = 1000


class _NotAgain(logging.Filter):
    """Lets the same text pass twice a minute: librdkafka says of each attempt to connect that it failed."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, text = time.monotonic(), re.sub(r"\(after \d+ms.*", "", record.getMessage())
        if now - self._said.get(text, float("-inf")) < SAID_AGAIN_S:
            return False
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[text] = now
        return True


KAFKA_LOGGER: Final = logging.getLogger(__name__)
"""What librdkafka says of its connections."""
KAFKA_LOGGER.addFilter(_NotAgain())

Client = TypeVar("Client", Producer, Consumer)

ATTEMPT_TIMEOUT_S: Final = 5.0
BETWEEN_ATTEMPTS_S: Final = 0.1


class NotReached(Exception):
    """No broker answers, or none lets this client in; the message says what to do."""


def reach_brokers(settings: Settings, timeout_s: float) -> dict[str, Any]:
    """Options of librdkafka that say where the brokers are and how they are reached, once one has answered.

    Raises:
        SettingsError: the settings contradict each other, or name a file that cannot be used.
        NotReached: see there.
    """
    security, servers = kafka_security(settings), resolve_bootstrap_servers(settings)
    try:
        options = security.librdkafka_options()
    except UnusableSecurity as error:
        raise SettingsError(str(error)) from error
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            with KafkaCluster(servers, max(0.1, min(left_s, ATTEMPT_TIMEOUT_S)), security=security) as cluster:
                cluster.metadata(())
            break
        except AuthenticationRefused as error:
            raise NotReached(str(error)) from error
        except WireError as error:
            if left_s <= BETWEEN_ATTEMPTS_S:
                raise NotReached(
                    f"no Kafka broker answers at {servers} ({error}); start one, or set kafka.bootstrap_servers"
                ) from error
            time.sleep(BETWEEN_ATTEMPTS_S)
    return {"bootstrap.servers": servers, "reconnect.backoff.max.ms": 1000, **options}


def as_ms(name: str, seconds: float, most_ms: int) -> int:
    """A time in seconds as the Kafka client takes it.

    Raises:
        ValueError: it is longer than that client takes, or no number.
    """
    if not seconds * 1000 <= most_ms:
        raise ValueError(f"{name}={seconds:g}: the Kafka client takes {most_ms // 1000} s at most")
    return int(seconds * 1000)


def made(client: type[Client], config: dict[str, Any]) -> Client:
    """A client of librdkafka.

    Raises:
        ValueError: it does not take its options.
    """
    try:
        return client(config, logger=KAFKA_LOGGER)
    except KafkaException as error:
        text = error_text(error)
        if config.get("sasl.mechanism") == "GSSAPI":
            text += (
                "; for Kerberos, confluent-kafka is built beside a librdkafka that has it: "
                "pip install --no-binary confluent-kafka confluent-kafka"
            )
        raise ValueError(f"the Kafka client does not take its options: {text}") from error


_BROKERS: Final = "brokers are asked beforehand who they are; give kafka.bootstrap_servers in the settings"

REFUSED: Final = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "test.mock.num.brokers": "it would speak to brokers that are none",
    "default.topic.config": "give what is in it as options by themselves",
}
"""Options that neither client takes, and what to do instead."""


def merged(ours: dict[str, Any], given: Options | None, refused: Mapping[str, str]) -> dict[str, Any]:
    """Our options, changed by those of the application.

    Args:
        refused: those that a promise would not survive, or that would be ignored, each with the reason.

    Raises:
        ValueError: one of them is among those given.
    """
    for name in given or ():
        reason = (REFUSED | dict(refused)).get(name.removeprefix("topic."))  # librdkafka takes them by both names
        if reason is not None:
            raise ValueError(f"options[{name!r}] cannot be given: {reason}")
    return ours | dict(given or {})


def error_text(error: object) -> str:
    """An error of the Kafka client, or any other, in one line."""
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if isinstance(cause, KafkaError):
        return f"{cause.name()}: {cause.str()}"
    name, text = type(cause).__name__, " ".join(str(cause).split())
    return text if text.startswith(name) else f"{name}: {text}" if text else name
