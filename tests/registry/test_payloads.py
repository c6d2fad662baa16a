"""The bodies of requests, as marshmallow schemas."""

from __future__ import annotations

from headrace.registry.api.payloads import ConfigPayload
from headrace.registry.domain import ConfigChange, ConfigEntry


def test_null_clears_every_key_of_a_configuration() -> None:
    payload = ConfigPayload()
    names = {field.data_key or name for name, field in payload.load_fields.items()}
    assert payload.load(dict.fromkeys(names)) == ConfigChange(ConfigEntry(), frozenset(payload.load_fields))
