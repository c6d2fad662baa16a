"""Which schema does a message of this topic go out with? Asked of the registry once, then kept.

The subject of a topic's values is what the setting `loader.subject` says, by default `<topic>-value`. A schema that the
caller gives is registered there, or found to be registered already. Without one, the subject's latest version is used,
and asked for again now and then, so that a producer that runs for weeks follows the registry.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from headrace.avro_schema import AvroSchemaError, Schema, parse_schema, self_contained_text
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.clients.encoding import Encoding
from headrace.clients.errors import ProducerError, SchemaRefused, SchemaUnavailable
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import UNANSWERED, RegistryError, SubjectNotFound
from headrace.settings import LoaderSettings

logger = logging.getLogger(__name__)

LATEST_KEPT_S = 60.0
"""How long the latest version of a subject is taken for the latest."""

GIVEN_MAX = 1_000
"""Schemas given with messages that are kept, text and value each. An application that makes its schema anew for each
message pays for that with each, and does not fill the memory."""

FRUITLESS_MAX = 10
RETRY_S = 0.05
"""A value that does not fit the version at hand has the registry asked at once, whatever was answered before: the
schema may have changed since. After so many such questions in a row that found nothing newer, the next waits its turn:
an application that sends nothing but misfits asks twenty times a second and not for every one."""


UNANSWERED_S = 5.0
UNANSWERED_TIMES = 20
"""A registry that does not answer is left alone for so many times as long as it kept an application waiting: what is
known goes on to be used meanwhile, and one that hangs takes a twentieth of the time at most."""


class Encodings:
    """The encodings of one producer. Threads may share it: at worst two ask the registry for the same.

    Args:
        loader: the settings that say what a topic's subject and the candidates for its message time are; every tier
            must take them from the same settings.
    """

    def __init__(self, registry: RegistryClient, loader: LoaderSettings) -> None:
        self._registry = registry
        self._loader = loader
        self._given: dict[tuple[str, str], Encoding] = {}
        self._given_values: dict[tuple[str, int], tuple[Schema, Encoding]] = {}
        self._latest: dict[str, tuple[Encoding, float]] = {}
        self._fruitless: dict[str, tuple[int, float]] = {}
        self._unanswered_until = float("-inf")

    def of(self, topic: str, schema: str | Schema | None) -> Encoding:
        """The encoding for a message.

        Raises:
            SchemaRefused: the schema given cannot be used.
            SchemaUnavailable: the registry has none, or cannot be reached.
            ProducerError: the topic is no text.
        """
        if not isinstance(topic, str):
            raise ProducerError(f"expected topic to be text, found {type(topic).__name__} {topic!r:.60}")
        if schema is None:
            found = self._latest.get(topic)
            if found is None or time.monotonic() > found[1]:
                return self._ask_for_latest(topic)
            return found[0]
        if isinstance(schema, str):
            encoding = self._given.get((topic, schema))
            if encoding is None:
                encoding = self._given[topic, schema] = self._register(topic, schema, schema)
                _forget_oldest(self._given)
            return encoding
        if not isinstance(schema, Schema):
            raise SchemaRefused(
                f"topic {topic}: expected schema to be JSON text or None, found {type(schema).__name__} {schema!r:.60}",
                topic=topic,
                subject=self._loader.subject_of(topic),
            )
        # By identity, since comparing large schemas for every message is slow; the entry keeps the schema alive.
        kept = self._given_values.get((topic, id(schema)))
        if kept is None:
            text = self_contained_text(schema)
            kept = self._given_values[topic, id(schema)] = (schema, self._register(topic, text, schema))
            _forget_oldest(self._given_values)
        return kept[1]

    def newer_than(self, encoding: Encoding) -> Encoding | None:
        """A later version than the one that was taken for the latest, when the registry has one by now."""
        topic = encoding.topic
        latest, _ = self._latest[topic]
        if latest is not encoding:
            return latest  # another thread has asked meanwhile
        asked, again_at = self._fruitless.get(topic, (0, 0.0))
        if time.monotonic() < self._unanswered_until:
            return None
        if asked >= FRUITLESS_MAX and time.monotonic() < again_at:
            return None
        newest = self._ask_for_latest(topic)
        if newest.schema_id == encoding.schema_id:
            self._fruitless[topic] = (asked + 1, time.monotonic() + RETRY_S)
            return None
        self._fruitless.pop(topic, None)
        return newest

    def _ask_for_latest(self, topic: str) -> Encoding:
        subject = self._loader.subject_of(topic)
        kept = self._latest.get(topic)
        asked_at = time.monotonic()
        if kept is not None and asked_at < self._unanswered_until:
            return kept[0]
        try:
            registered = self._registry.version(subject, "latest")
        except SubjectNotFound as error:
            raise SchemaUnavailable(
                f"topic {topic}: subject {subject} has no schema; register one, or give send() a schema",
                topic=topic,
                subject=subject,
            ) from error
        except RegistryError as error:
            if kept is None:
                raise _unavailable(topic, subject, error) from error
            encoding = kept[0]
            if isinstance(error, UNANSWERED):
                now = time.monotonic()
                self._unanswered_until = now + max(UNANSWERED_S, UNANSWERED_TIMES * (now - asked_at))
            logger.warning("latest schema kept subject=%s schema_id=%d error=%s", subject, encoding.schema_id, error)
        else:
            if kept is not None and kept[0].schema_id == registered.schema_id:
                encoding = kept[0]
            else:
                encoding = self._encoding(topic, registered, None)
        self._latest[topic] = (encoding, time.monotonic() + LATEST_KEPT_S)
        return encoding

    def _register(self, topic: str, text: str, schema: str | Schema) -> Encoding:
        subject = self._loader.subject_of(topic)
        try:
            parsed = parse_schema(text, source="schema", strict=False) if isinstance(schema, str) else schema
        except AvroSchemaError as error:
            raise SchemaRefused(f"topic {topic}: {error}", topic=topic, subject=subject) from error
        try:
            registered = self._registry.register(subject, text)
        except UNANSWERED as error:
            raise _unavailable(topic, subject, error) from error
        except RegistryError as error:
            raise SchemaRefused(
                f"topic {topic}: the registry refused the schema for {subject}: {error}", topic=topic, subject=subject
            ) from error
        return self._encoding(topic, registered, parsed)

    def _encoding(self, topic: str, registered: RegisteredSchema, schema: Schema | None) -> Encoding:
        subject = self._loader.subject_of(topic)
        try:
            return Encoding(
                topic,
                subject,
                registered.schema_id,
                schema if schema is not None else self._registry.parsed(registered),
                time_property=registered.metadata.get(TIME_PROPERTY, ""),
                time_fields=self._loader.of_topic(topic).time_fields,
            )
        except RegistryError as error:
            raise _unavailable(topic, subject, error) from error
        except AvroSchemaError as error:
            raise SchemaUnavailable(
                f"topic {topic}: the schema of {subject} (id {registered.schema_id}) cannot be read: {error}",
                topic=topic,
                subject=subject,
            ) from error


def _forget_oldest(kept: dict[Any, Any]) -> None:
    while len(kept) > GIVEN_MAX:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread does so as well
            del kept[next(iter(kept))]


def _unavailable(topic: str, subject: str, error: RegistryError) -> SchemaUnavailable:
    return SchemaUnavailable(f"topic {topic}: no schema of {subject}: {error}", topic=topic, subject=subject)
