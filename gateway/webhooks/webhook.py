"""The `[[gateway.webhooks]]` of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from headrace.gateway.encoding import Format
from headrace.gateway.webhooks.signature import BadSecret, read_secret
from headrace.settings import SettingsError
from headrace.settings.values import Duration

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
STARTS: Final = ("earliest", "latest")
BATCH_BYTES_MAX: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL to which the messages of topics are posted.

    Attributes:
        name: distinguishes the webhooks; the name of the consumer group contains it.
        topics: the names of the topics.
        url: an http or https URL. User and password in it are sent as basic authentication.
        key: the key of the signatures, None for requests without signature.
        key_format, value_format: how keys and values are written.
        batch_records, batch_bytes, batch_wait: a batch ends with this many messages, or with this size of messages, or
            after this time.
        timeout: time limit of a response.
        attempts: how often a message is posted that the receiver refuses, before it becomes a dead letter.
        dead_letter_topic: the topic of refused messages; "" is the message's topic with `.dead-letter`.
        start: the first position, if the group has none: `earliest` or `latest`.
    """

    name: str
    topics: tuple[str, ...]
    url: str
    key: bytes | None = None
    key_format: Format = Format.BINARY
    value_format: Format = Format.AVRO
    batch_records: int = 500
    batch_bytes: int = 2**20
    batch_wait: Duration = Duration(1_000)
    timeout: Duration = Duration(30_000)
    attempts: int = 3
    dead_letter_topic: str = ""
    start: str = "latest"


def webhooks_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Webhook, ...]:
    """Reads the tables of the settings.

    Raises:
        SettingsError: a table has an unknown key or an invalid value, or two tables have one name.
    """
    webhooks = tuple(_webhook(table, f"[[gateway.webhooks]] number {number}") for number, table in enumerate(tables, 1))
    names = [one.name for one in webhooks]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"[[gateway.webhooks]]: two webhooks have the name {name!r}; each needs its own")
    return webhooks


def _webhook(table: Mapping[str, Any], where: str) -> Webhook:
    unknown = sorted(set(table) - set(_READERS))
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in {where}; known: {', '.join(_READERS)}")
    missing = [name for name in ("name", "topics", "url") if name not in table]
    if missing:
        raise SettingsError(f"{where} has no {missing[0]}")
    values = {}
    for name, value in table.items():
        try:
            values["key" if name == "secret_file" else name] = _READERS[name](value)
        except ValueError as error:
            raise SettingsError(f"{name} of {where}: {error}") from None
    return Webhook(**values)


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value) or value in (".", ".."):
            raise ValueError(f"expected {expected}, found {value!r:.80}")
        return value

    return read


_topic: Final = _matching(TOPIC, "the name of a topic")


def _topics(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of topics, found {value!r:.80}")
    return tuple(_topic(one) for one in value)


def _url(value: Any) -> str:
    """Reads a URL. The message does not repeat it, because it may contain a token."""
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not value.isascii() or re.search(r"[\x00-\x20]", value):
        raise ValueError("expected a URL http://… or https://…, found another value")
    return str(value)


def _format(value: Any) -> Format:
    try:
        return Format(value)
    except ValueError:
        raise ValueError(f"expected one of {', '.join(Format)}, found {value!r:.80}") from None


def _number(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"expected a number from {least} to {most}, found {value!r:.80}")
        return value

    return read


def _duration(most: Duration) -> Callable[[Any], Duration]:
    def read(value: Any) -> Duration:
        duration = Duration.parse(value if isinstance(value, str) else "")
        if duration > most:
            raise ValueError(f"expected at most {most}, found {duration}")
        return duration

    return read


def _secret(value: Any) -> bytes:
    try:
        return read_secret(Path(value if isinstance(value, str) else "").expanduser())
    except BadSecret as error:
        raise ValueError(str(error)) from None


def _start(value: Any) -> str:
    if value not in STARTS:
        raise ValueError(f"expected one of {', '.join(STARTS)}, found {value!r:.80}")
    return str(value)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": _matching(NAME, "letters, digits, dots, hyphens and underscores"),
    "topics": _topics,
    "url": _url,
    "secret_file": _secret,
    "key_format": _format,
    "value_format": _format,
    "batch_records": _number(1, 10_000),
    "batch_bytes": _number(1, BATCH_BYTES_MAX),
    "batch_wait": _duration(Duration(60_000)),
    "timeout": _duration(Duration(60_000)),
    "attempts": _number(1, 1_000),
    "dead_letter_topic": _topic,
    "start": _start,
}
assert {one.name for one in fields(Webhook)} - {"key"} == set(_READERS) - {"secret_file"}
