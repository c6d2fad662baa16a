"""Finds the schema for the messages of a topic, and caches it.

The setting `loader.subject` determines the subject of a topic's values, by default `<topic>-value`. A schema that the
caller passes is registered there, unless it already is. Otherwise the latest version of the subject is used; it is
refreshed periodically, so that a producer that runs for weeks uses new versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.avro_schema import AvroSchemaError, Schema, parse_schema, self_contained_text
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.clients.encoding import Encoding
from headrace.clients.errors import ProducerError, SchemaRefused, SchemaUnavailable
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import INCONCLUSIVE_ERRORS, RegistryError, SubjectNotFound
from headrace.settings import LoaderSettings

logger = logging.getLogger(__name__)

LATEST_TTL_S = 60.0
"""How long the latest version of a subject is cached."""

GIVEN_SCHEMAS_MAX = 1_000
"""Maximum number of cached schemas that callers passed as text, and of those passed as `Schema` values. An application
that creates a new schema object for each message is slow, but does not fill the memory."""

FAILED_REFRESHES_MAX = 10
RETRY_S = 0.05
"""A value that does not fit the cached version triggers a refresh, because a newer version may exist. After
`FAILED_REFRESHES_MAX` refreshes in a row without a newer version, further ones are skipped until `RETRY_S` have passed
since the last one: an application that only sends invalid values then causes 20 requests per second, not one per
message."""


BACKOFF_S_MIN = 5.0
BACKOFF_FACTOR = 20
"""After the registry gave no usable response to a refresh, no latest version is refreshed for `BACKOFF_FACTOR` times
the duration of that request (at least `BACKOFF_S_MIN`). Cached schemas are used meanwhile, so the refreshes at a
hanging registry take at most 1/20 of the time."""


class EncodingCache:
    """Caches the encodings (one per topic and schema) that a producer uses for its messages. Thread-safe; concurrent
    threads may request the same schema from the registry twice.

    Args:
        loader: settings with the subjects and time fields of topics; producers, consumers and loader must use the same
            settings.
        check_topic: called with a topic before a schema is registered for it; raises if the brokers reject the topic.
    """

    def __init__(self, registry: RegistryClient, loader: LoaderSettings, check_topic: Callable[[str], None]) -> None:
        self._registry = registry
        self._check_topic = check_topic
        self._loader = loader
        self._given: dict[tuple[str, str], Encoding] = {}
        self._given_values: dict[tuple[str, int], tuple[Schema, Encoding]] = {}
        self._latest: dict[str, tuple[Encoding, float]] = {}
        self._failed_refreshes: dict[str, tuple[int, float]] = {}
        self._backoff_until = float("-inf")

    def get(self, topic: str, schema: str | Schema | None) -> Encoding:
        """Returns the encoding for a message of this topic. Registers the schema, or without one uses the latest
        version of the topic's subject.

        Raises:
            SchemaRefused: the given schema is invalid or rejected.
            SchemaUnavailable: no schema is registered, it cannot be read, or the registry gives no usable response.
            TopicRefused: messages cannot be sent to the topic.
            ProducerError: the topic is not text.
        """
        if not isinstance(topic, str):
            raise ProducerError(f"expected topic to be text, found {type(topic).__name__} {topic!r:.60}")
        if schema is None:
            found = self._latest.get(topic)
            if found is None or time.monotonic() > found[1]:
                return self._fetch_latest(topic)
            return found[0]
        if isinstance(schema, str):
            encoding = self._given.get((topic, schema))
            if encoding is None:
                encoding = self._given[topic, schema] = self._register(topic, schema, schema)
                _evict_oldest(self._given)
            return encoding
        if not isinstance(schema, Schema):
            raise SchemaRefused(
                f"topic {topic}: expected schema to be JSON text or None, found {type(schema).__name__} {schema!r:.60}",
                topic=topic,
                subject=self._loader.subject_of(topic),
            )
        # The key is the identity, because comparing large schemas for every message is slow. The entry holds a
        # reference to the schema, so that its id is not reused.
        cached = self._given_values.get((topic, id(schema)))
        if cached is None:
            text = self_contained_text(schema)
            cached = self._given_values[topic, id(schema)] = (schema, self._register(topic, text, schema))
            _evict_oldest(self._given_values)
        return cached[1]

    def newer_than(self, encoding: Encoding) -> Encoding | None:
        """Returns the encoding for the latest version of the subject if that is another version than the one of
        `encoding`. Returns None if it is not, or if the registry may not be contacted yet. Called when a value does not
        fit `encoding`."""
        topic = encoding.topic
        latest, _ = self._latest[topic]
        if latest is not encoding:
            return latest  # another thread has refreshed it
        attempts, retry_at = self._failed_refreshes.get(topic, (0, 0.0))
        if time.monotonic() < self._backoff_until:
            return None
        if attempts >= FAILED_REFRESHES_MAX and time.monotonic() < retry_at:
            return None
        newest = self._fetch_latest(topic)
        if newest.schema_id == encoding.schema_id:
            self._failed_refreshes[topic] = (attempts + 1, time.monotonic() + RETRY_S)
            return None
        self._failed_refreshes.pop(topic, None)
        return newest

    def _fetch_latest(self, topic: str) -> Encoding:
        subject = self._loader.subject_of(topic)
        cached = self._latest.get(topic)
        requested_at = time.monotonic()
        if cached is not None and requested_at < self._backoff_until:
            return cached[0]
        try:
            registered = self._registry.version(subject, "latest")
        except SubjectNotFound as error:
            raise SchemaUnavailable(
                f"topic {topic}: subject {subject} has no schema; register one, or pass a schema to send()",
                topic=topic,
                subject=subject,
            ) from error
        except RegistryError as error:
            if cached is None:
                raise _unavailable(topic, subject, "fetched", error) from error
            encoding = cached[0]
            if isinstance(error, INCONCLUSIVE_ERRORS):
                now = time.monotonic()
                self._backoff_until = now + max(BACKOFF_S_MIN, BACKOFF_FACTOR * (now - requested_at))
            logger.warning(
                "latest schema not refreshed, using cached subject=%s schema_id=%d error=%s",
                subject,
                encoding.schema_id,
                error,
            )
        else:
            if cached is not None and cached[0].schema_id == registered.schema_id:
                encoding = cached[0]
            else:
                encoding = self._encoding(topic, registered, None)
        self._latest[topic] = (encoding, time.monotonic() + LATEST_TTL_S)
        return encoding

    def _register(self, topic: str, text: str, schema: str | Schema) -> Encoding:
        subject = self._loader.subject_of(topic)
        try:
            parsed = (
                parse_schema(text, source="schema", strict=False, lenient_json=True)
                if isinstance(schema, str)
                else schema
            )
        except AvroSchemaError as error:
            raise SchemaRefused(f"topic {topic}: {error}", topic=topic, subject=subject) from error
        self._check_topic(topic)
        try:
            registered = self._registry.register(subject, text)
        except INCONCLUSIVE_ERRORS as error:
            raise _unavailable(topic, subject, "registered", error) from error
        except RegistryError as error:
            raise SchemaRefused(
                f"topic {topic}: the registry rejected the schema for {subject}: {error}", topic=topic, subject=subject
            ) from error
        return self._encoding(topic, registered, parsed)

    def _encoding(self, topic: str, registered: RegisteredSchema, schema: Schema | None) -> Encoding:
        subject = self._loader.subject_of(topic)
        newest = registered if schema is None else self._newest_version(subject, registered)
        try:
            return Encoding(
                topic,
                subject,
                registered.schema_id,
                schema if schema is not None else self._registry.parsed(registered),
                time_property=newest.metadata.get(TIME_PROPERTY, ""),
                time_fields=self._loader.of_topic(topic).time_fields,
                newest=None if newest.schema_id == registered.schema_id else self._registry.parsed(newest),
            )
        except RegistryError as error:
            raise _unavailable(topic, subject, "fetched", error) from error
        except AvroSchemaError as error:
            raise SchemaUnavailable(
                f"topic {topic}: the schema of {subject} (id {registered.schema_id}) cannot be read: {error}; "
                "register a corrected version",
                topic=topic,
                subject=subject,
            ) from error

    def _newest_version(self, subject: str, registered: RegisteredSchema) -> RegisteredSchema:
        """Returns the newest version of the subject, which determines the time fields of older ones. Returns the
        version of this encoding if the registry gives no usable response: a producer can send without it.

        Args:
            registered: the version of this encoding.
        """
        try:
            newest = self._registry.version(subject, "latest")
            self._registry.parsed(newest)
        except (RegistryError, AvroSchemaError):
            return registered
        return newest


def _evict_oldest(cache: dict[Any, Any]) -> None:
    while len(cache) > GIVEN_SCHEMAS_MAX:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread may delete it
            del cache[next(iter(cache))]


def _unavailable(topic: str, subject: str, action: str, error: RegistryError) -> SchemaUnavailable:
    return SchemaUnavailable(
        f"topic {topic}: the schema of {subject} cannot be {action}: {error}", topic=topic, subject=subject
    )
