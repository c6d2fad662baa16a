"""The bodies of requests, as marshmallow schemas."""

from __future__ import annotations

from typing import Any

import pytest
from marshmallow import ValidationError

from headrace.registry.api.payloads import ConfigPayload, SchemaPayload
from headrace.registry.domain import ConfigChange, ConfigEntry, SchemaRequest
from support.cases import all_cases


def test_null_clears_every_key_of_a_configuration() -> None:
    payload = ConfigPayload()
    names = {field.data_key or name for name, field in payload.load_fields.items()}
    assert payload.load(dict.fromkeys(names)) == ConfigChange(ConfigEntry(), frozenset(payload.load_fields))


def test_null_means_a_missing_key_of_a_schema_request() -> None:
    payload = SchemaPayload()
    names = [field.data_key or name for name, field in payload.load_fields.items()]
    assert payload.load(dict.fromkeys(names)) == payload.load({}) == SchemaRequest(None)


def test_numbers_and_booleans_may_be_texts_as_in_jackson() -> None:
    with all_cases() as case:
        number: Any
        for number in (2, 2.0, "2", " 2 "):
            with case(number):
                assert SchemaPayload().load({"version": number}).version == 2
        for flag, expected in (("true", True), ("TRUE", True), (1, True), (0, False), ("False", False)):
            with case(flag):
                assert ConfigPayload().load({"normalize": flag}).values.normalize is expected


def test_values_that_would_change_are_rejected() -> None:
    with all_cases() as case:
        for version in (1.5, "1.5", "x", "", True, 2**31):
            with case(version), pytest.raises(ValidationError):
                SchemaPayload().load({"version": version})
        for flag in ("yes", "no", "on", "1", "", "t"):
            with case(flag), pytest.raises(ValidationError):
                ConfigPayload().load({"normalize": flag})
