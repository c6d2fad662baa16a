"""The tables of webhooks in the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.encoding import Format
from headrace.gateway.webhooks.webhook import Webhook, webhooks_of
from headrace.settings import SettingsError
from headrace.settings.loading import load_settings
from headrace.settings.values import Duration

SMALLEST = {"name": "billing", "topics": ["orders", "returns"], "url": "https://user:pass@example.com/hook?token=t"}


def test_keys_without_a_value_have_defaults() -> None:
    assert webhooks_of([SMALLEST]) == (Webhook("billing", ("orders", "returns"), str(SMALLEST["url"])),)


def test_every_key_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", encoding="utf-8")
    values = {
        "secret_file": str(secret),
        "key_format": "string",
        "value_format": "json",
        "batch_records": 7,
        "batch_bytes": 100,
        "batch_wait": "0s",
        "timeout": "5s",
        "attempts": 1,
        "dead_letter_topic": "dead",
        "start": "earliest",
    }
    (found,) = webhooks_of([SMALLEST | values])
    assert found == Webhook(
        "billing",
        ("orders", "returns"),
        str(SMALLEST["url"]),
        found.key,
        Format.STRING,
        Format.JSON,
        7,
        100,
        Duration(0),
        Duration(5_000),
        1,
        "dead",
        "earliest",
    )
    assert found.key is not None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": "ftp://token@x"}, "url of [[gateway.webhooks]] number 1: expected a URL http://"),
        ({"url": "https://x/ token"}, "expected a URL"),
        ({"url": "https://x:99999/token"}, "expected a URL"),
        ({"url": 7}, "expected a URL"),
        ({"topics": ["../x"]}, "topics of [[gateway.webhooks]] number 1: expected the name of a topic, found '../x'"),
        ({"topics": [".."]}, "expected the name of a topic"),
        ({"topics": []}, "expected a list of topics, found []"),
        ({"topics": "orders"}, "expected a list of topics"),
        ({"name": "a b"}, "expected letters, digits, dots, hyphens and underscores, found 'a b'"),
        ({"value_format": "xml"}, "expected one of binary, json, string, avro, found 'xml'"),
        ({"batch_records": 0}, "expected a number from 1 to 10000, found 0"),
        ({"batch_records": True}, "expected a number from 1 to 10000, found True"),
        ({"timeout": "2m"}, "expected at most 1m, found 2m"),
        ({"timeout": "soon"}, "expected a whole number with a unit"),
        ({"attempts": 0}, "expected a number from 1 to 1000"),
        ({"start": "middle"}, "expected one of earliest, latest, found 'middle'"),
        ({"secret_file": "/nonexistent"}, "No such file"),
        ({"color": "red"}, "unknown key 'color' in [[gateway.webhooks]] number 1; known: name, topics, url"),
    ],
)
def test_invalid_value_is_named_without_the_token(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        webhooks_of([SMALLEST | changes])
    assert problem in str(raised.value)
    assert "token" not in str(raised.value)


@pytest.mark.parametrize("missing", ["name", "topics", "url"])
def test_missing_key_is_named(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"number 1 has no {missing}"):
        webhooks_of([{key: value for key, value in SMALLEST.items() if key != missing}])


def test_names_are_unique() -> None:
    with pytest.raises(SettingsError, match="two webhooks have the name 'billing'"):
        webhooks_of([SMALLEST, SMALLEST])


def test_settings_are_masked(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[[gateway.webhooks]]\nname = "a"\nurl = "https://x/token"\n', encoding="utf-8")
    assert "token" not in str(load_settings(config=config).masked()["gateway"])
