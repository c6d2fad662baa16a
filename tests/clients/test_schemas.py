"""The cache of schemas for messages, and its requests to the registry."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.clients import schemas
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.errors import ProducerError, SchemaRefused, SchemaUnavailable
from headrace.clients.schemas import BACKOFF_FACTOR, FAILED_REFRESHES_MAX, RETRY_S, EncodingCache
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import RegistryUnavailable
from headrace.settings import LoaderSettings


def accept_topic(topic: str) -> None:
    """Stands for a check of the topic on brokers that accept every topic."""


class OneSubject(RegistryClient):
    """A registry with one subject; counts requests for its latest version."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.requests = 0
        self.register_another()

    def register_another(self) -> None:
        self.latest = getattr(self, "latest", 0) + 1

    def version(self, subject: str, version: object) -> RegisteredSchema:
        self.requests += 1
        fields = [{"name": f"f{number}", "type": "int"} for number in range(self.latest)]
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        return RegisteredSchema(subject=subject, version=self.latest, schema_id=self.latest, text=text)


def test_newer_version_is_found_at_once_for_a_value_that_does_not_fit() -> None:
    registry = OneSubject()
    encodings = EncodingCache(registry, LoaderSettings(), accept_topic)
    first = encodings.get("t", None)
    assert encodings.newer_than(first) is None  # there is no newer version
    registry.register_another()
    second = encodings.newer_than(first)
    assert second is not None and second.schema_id == 2
    assert encodings.get("t", None) is second
    registry.register_another()
    third = encodings.newer_than(second)
    assert third is not None and third.schema_id == 3
    assert encodings.newer_than(first) is third  # a thread that still has the first version
    assert registry.requests == 4


def test_refreshes_are_limited_for_many_invalid_values(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(schemas.time, "monotonic", lambda: now)
    registry = OneSubject()
    encodings = EncodingCache(registry, LoaderSettings(), accept_topic)
    first = encodings.get("t", None)
    for _ in range(100):
        assert encodings.newer_than(first) is None
    assert registry.requests == 1 + FAILED_REFRESHES_MAX
    now += RETRY_S
    registry.register_another()
    second = encodings.newer_than(first)
    assert second is not None
    for _ in range(100):  # a newer version resets the counter
        assert encodings.newer_than(second) is None
    assert registry.requests == 1 + FAILED_REFRESHES_MAX + 1 + FAILED_REFRESHES_MAX


def test_hanging_registry_is_not_contacted_during_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(schemas.time, "monotonic", lambda: now)

    class Hanging(OneSubject):
        is_hanging = False

        def version(self, subject: str, version: object) -> RegisteredSchema:
            nonlocal now
            found = super().version(subject, version)
            if self.is_hanging:
                now += 30
                raise RegistryUnavailable("http://127.0.0.1:1", "no answer within 30 s")
            return found

    registry = Hanging()
    encodings = EncodingCache(registry, LoaderSettings(), accept_topic)
    first, other = encodings.get("t", None), encodings.get("other", None)
    registry.is_hanging = True
    assert encodings.newer_than(first) is None  # a value that does not fit
    assert registry.requests == 3
    now += 30 * BACKOFF_FACTOR - 1
    assert encodings.get("t", None) is first
    assert encodings.get("other", None) is other
    assert encodings.newer_than(first) is None
    assert registry.requests == 3
    registry.is_hanging = False
    registry.register_another()
    now += 2
    assert encodings.get("t", None).schema_id == 2


def test_cache_of_given_schemas_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "GIVEN_SCHEMAS_MAX", 5)

    class Accepting(OneSubject):
        def register(self, subject: str, text: str, *args: object, **options: object) -> RegisteredSchema:
            self.requests += 1
            return RegisteredSchema(subject=subject, version=1, schema_id=self.requests, text=text)

    registry = Accepting()
    encodings = EncodingCache(registry, LoaderSettings(), accept_topic)
    texts = [json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]}) for number in range(9)]
    for text in texts:
        encodings.get("t", text)
        encodings.get("t", parse_schema(text, source="test"))
    assert (len(encodings._given), len(encodings._given_values)) == (5, 5)
    requests = registry.requests
    encodings.get("t", texts[-1])
    assert registry.requests == requests
    encodings.get("t", texts[0])
    assert registry.requests == requests + 2, "registers it and requests the newest version"


class Renamed(RegistryClient):
    """A registry with two versions: the second renames the field `created`, and its metadata names the time field."""

    OLD = '{"type": "record", "name": "R", "fields": [{"name": "created", "type": "string"}]}'
    NEW = (
        '{"type": "record", "name": "R", "fields": [{"name": "created_at", "type": "string", "aliases": ["created"]}]}'
    )

    def __init__(self, *, is_latest_known: bool = True) -> None:
        super().__init__("http://127.0.0.1:1")
        self.is_latest_known = is_latest_known

    def register(self, subject: str, text: str, *args: object, **options: object) -> RegisteredSchema:
        return self.schema_by_id(1)

    def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(subject="t-value", version=1, schema_id=1, text=self.OLD)

    def version(self, subject: str, version: object) -> RegisteredSchema:
        if not self.is_latest_known:
            raise RegistryUnavailable("http://127.0.0.1:1", "timeout")
        metadata = {"headrace.time": "created_at"}
        return RegisteredSchema(subject=subject, version=2, schema_id=2, text=self.NEW, metadata=metadata)


def test_producer_and_consumer_of_an_old_version_find_the_time_field_that_the_newest_version_renamed() -> None:
    registry = Renamed()
    encoding = EncodingCache(registry, LoaderSettings(), accept_topic).get("t", Renamed.OLD)
    value = {"created": "1970-01-01T00:00:05Z"}
    encoded = encoding.encode(value)
    assert encoding.schema_id == 1
    assert encoding.read_time is not None and encoding.read_time(value, encoded) == 5_000
    record = FetchedRecord("t", 0, 0, 0, None, encoded, ())
    assert Decoder(registry, None, LoaderSettings()).decode(record) == (1, value, 5_000)
    reader = parse_schema(Renamed.NEW)
    assert Decoder(registry, reader, LoaderSettings()).decode(record)[2] == 5_000


def test_producer_sends_with_a_given_schema_if_the_newest_version_is_unknown() -> None:
    encoding = EncodingCache(Renamed(is_latest_known=False), LoaderSettings(), accept_topic).get("t", Renamed.OLD)
    assert encoding.encode({"created": "now"}) and encoding.read_time is None


def test_given_schema_may_have_comments_like_a_registered_one() -> None:
    encoding = EncodingCache(Renamed(), LoaderSettings(), accept_topic).get("t", f"/* licence */ {Renamed.OLD} // end")
    assert (encoding.schema_id, encoding.encode({"created": "now"})[5:]) == (1, b"\x06now")


def test_registered_schema_with_an_invalid_default_is_unavailable() -> None:
    """As an older registry may contain one; fastavro rejects it."""

    class Older(OneSubject):
        def version(self, subject: str, version: object) -> RegisteredSchema:
            text = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int", "default": "null"}]}'
            return RegisteredSchema(subject=subject, version=1, schema_id=7, text=text)

    with pytest.raises(SchemaUnavailable, match=r"\(id 7\).*<null>") as unavailable:
        EncodingCache(Older(), LoaderSettings(), accept_topic).get("t", None)
    assert (unavailable.value.topic, unavailable.value.subject) == ("t", "t-value")


@pytest.mark.parametrize("topic", [None, 7, b"x", ["t"]])
def test_invalid_topic_is_an_error(topic: Any) -> None:
    encodings = EncodingCache(OneSubject(), LoaderSettings(), accept_topic)
    for schema in (None, '"int"'):
        with pytest.raises(ProducerError, match=re.escape(repr(topic))):
            encodings.get(topic, schema)


@pytest.mark.parametrize("schema", [{"type": "string"}, b'"string"', 7])
def test_invalid_schema_argument_is_an_error(schema: Any) -> None:
    encodings = EncodingCache(OneSubject(), LoaderSettings(), accept_topic)
    with pytest.raises(SchemaRefused, match=re.escape(repr(schema))) as refused:
        encodings.get("t", schema)
    assert (refused.value.topic, refused.value.subject) == ("t", "t-value")
