"""Which schema a message goes out with, and when the registry is asked again."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.clients import schemas
from headrace.clients.errors import ProducerError, SchemaRefused
from headrace.clients.schemas import FRUITLESS_MAX, RETRY_S, UNANSWERED_TIMES, Encodings
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import RegistryUnavailable
from headrace.settings import LoaderSettings


class OneSubject(RegistryClient):
    """A registry whose one subject has one latest version; counts how often that is asked for."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked = 0
        self.register_another()

    def register_another(self) -> None:
        self.latest = getattr(self, "latest", 0) + 1

    def version(self, subject: str, version: object) -> RegisteredSchema:
        self.asked += 1
        fields = [{"name": f"f{number}", "type": "int"} for number in range(self.latest)]
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        return RegisteredSchema(subject=subject, version=self.latest, schema_id=self.latest, text=text)


def test_a_misfit_right_after_a_schema_change_is_asked_about_at_once() -> None:
    registry = OneSubject()
    encodings = Encodings(registry, LoaderSettings())
    first = encodings.of("t", None)
    assert encodings.newer_than(first) is None  # the value really does not fit
    registry.register_another()
    second = encodings.newer_than(first)
    assert second is not None and second.schema_id == 2
    assert encodings.of("t", None) is second
    registry.register_another()
    third = encodings.newer_than(second)
    assert third is not None and third.schema_id == 3
    assert encodings.newer_than(first) is third  # a thread that was late
    assert registry.asked == 4


def test_nothing_but_misfits_does_not_ask_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(schemas.time, "monotonic", lambda: now)
    registry = OneSubject()
    encodings = Encodings(registry, LoaderSettings())
    first = encodings.of("t", None)
    for _ in range(100):
        assert encodings.newer_than(first) is None
    assert registry.asked == 1 + FRUITLESS_MAX
    now += RETRY_S
    registry.register_another()
    second = encodings.newer_than(first)
    assert second is not None
    for _ in range(100):  # what was found begins the count anew
        assert encodings.newer_than(second) is None
    assert registry.asked == 1 + FRUITLESS_MAX + 1 + FRUITLESS_MAX


def test_a_registry_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
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
    encodings = Encodings(registry, LoaderSettings())
    first, other = encodings.of("t", None), encodings.of("other", None)
    registry.is_hanging = True
    assert encodings.newer_than(first) is None  # a misfit
    assert registry.asked == 3
    now += 30 * UNANSWERED_TIMES - 1
    assert encodings.of("t", None) is first
    assert encodings.of("other", None) is other
    assert encodings.newer_than(first) is None
    assert registry.asked == 3
    registry.is_hanging = False
    registry.register_another()
    now += 2
    assert encodings.of("t", None).schema_id == 2


def test_schemas_made_anew_for_each_message_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "GIVEN_MAX", 5)

    class Taking(OneSubject):
        def register(self, subject: str, text: str, *args: object, **options: object) -> RegisteredSchema:
            self.asked += 1
            return RegisteredSchema(subject=subject, version=1, schema_id=self.asked, text=text)

    registry = Taking()
    encodings = Encodings(registry, LoaderSettings())
    texts = [json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]}) for number in range(9)]
    for text in texts:
        encodings.of("t", text)
        encodings.of("t", parse_schema(text, source="test"))
    assert (len(encodings._given), len(encodings._given_values)) == (5, 5)
    asked = registry.asked
    encodings.of("t", texts[-1])
    assert registry.asked == asked
    encodings.of("t", texts[0])
    assert registry.asked == asked + 1


@pytest.mark.parametrize("topic", [None, 7, b"x", ["t"]])
def test_what_is_no_topic_is_refused(topic: Any) -> None:
    encodings = Encodings(OneSubject(), LoaderSettings())
    for schema in (None, '"int"'):
        with pytest.raises(ProducerError, match=re.escape(repr(topic))):
            encodings.of(topic, schema)


@pytest.mark.parametrize("schema", [{"type": "string"}, b'"string"', 7])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    encodings = Encodings(OneSubject(), LoaderSettings())
    with pytest.raises(SchemaRefused, match=re.escape(repr(schema))) as refused:
        encodings.of("t", schema)
    assert (refused.value.topic, refused.value.subject) == ("t", "t-value")
