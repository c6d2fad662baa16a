"""Decodes the keys and values of messages for responses.

A message that its format does not allow does not fail the response: its bytes are in the item in base64, with an error.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Message

from headrace.avro_codec import BadBody, UnreadableValue, core_library
from headrace.avro_codec.to_json import DecodeJson, compile_to_json
from headrace.avro_schema import AvroSchemaError, FramingError, unframe
from headrace.clients.kafka_client import message_headers
from headrace.gateway.encoding import Format
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import MalformedJson, parse_json
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryError, SchemaNotFound, SubjectNotFound, VersionNotFound

SCHEMAS_MAX: Final = 10_000
MISSING_S: Final = 10.0
"""Time after which an unknown schema id is requested again."""
REGISTRY_THREADS: Final = 4
RETRY_AFTER_S: Final = 5


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of the keys and values in responses."""

    key: Format
    value: Format


@dataclass(frozen=True, slots=True)
class _Missing:
    """A schema that the registry does not have. It is requested again after `expires`, by the monotonic clock."""

    reason: str
    expires: float


class Undecodable(ValueError):
    """Bytes have not the form of their format. The message is a phrase."""


Decode = Callable[[bytes], Any]


def decode_binary(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def decode_json(content: bytes) -> Any:
    try:
        return parse_json(content)
    except MalformedJson:
        raise Undecodable("the bytes are no JSON") from None


def decode_string(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Undecodable("the bytes are not UTF-8") from None


_PLAIN: Final[dict[Format, Decode]] = {
    Format.BINARY: decode_binary,
    Format.JSON: decode_json,
    Format.STRING: decode_string,
}


class MessageDecoder:
    """Writes messages as the items of a response, for the coroutines of one event loop.

    Args:
        registry: the client for the schemas of messages; `close` does not close it.
    """

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._schemas: OrderedDict[int, DecodeJson | _Missing] = OrderedDict()
        self._threads = ThreadPoolExecutor(REGISTRY_THREADS, "headrace-gateway-schemas")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def item(self, message: Message, formats: Formats) -> bytes:
        """Returns the item of a message, as JSON.

        Raises:
            GatewayError: the registry does not respond. The message may be decoded later.
        """
        errors: list[str] = []
        headers = message_headers(message)
        if headers is None:
            headers = []
            errors.append("headers: a name is not UTF-8")
        in_base64: list[str] = []

        async def decoded(part: str, content: bytes | None, form: Format) -> Any:
            if content is None:
                return None
            try:
                return await self._decode(content, form, headers if part == "value" else ())
            except Undecodable as error:
                errors.append(f"{part}: {error}")
                in_base64.append(part)
                return decode_binary(content)

        item: dict[str, Any] = {
            "topic": message.topic(),
            "key": await decoded("key", message.key(), formats.key),
            "value": await decoded("value", message.value(), formats.value),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
        }
        if headers:
            item["headers"] = [
                {"name": name, "value": None if content is None else decode_binary(content)}
                for name, content in headers
            ]
        if errors:
            item |= {"error_code": Kind.UNDECODABLE.value.code, "error": "; ".join(errors), "base64": in_base64}
        try:
            return _text(item)
        except (RecursionError, ValueError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a number has no JSON form"
            return _text(item | _raw(message, reason))

    async def _decode(self, content: bytes, form: Format, headers: Iterable[tuple[str, bytes | None]]) -> Any:
        if form is not Format.AVRO:
            return _PLAIN[form](content)
        try:
            framed = unframe(content, headers)
        except FramingError as error:
            raise Undecodable(str(error)) from None
        decode = self._schemas.get(framed.schema_id)
        if decode is None or (isinstance(decode, _Missing) and decode.expires < time.monotonic()):
            decode = await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, framed.schema_id)
            self._schemas[framed.schema_id] = decode
            if len(self._schemas) > SCHEMAS_MAX:
                self._schemas.popitem(last=False)
        if isinstance(decode, _Missing):
            raise Undecodable(decode.reason)
        try:
            return decode(framed.body)
        except (BadBody, UnreadableValue) as error:
            raise Undecodable(f"the bytes do not fit schema {framed.schema_id}: {error}") from None

    def _fetch(self, schema_id: int) -> DecodeJson | _Missing:
        try:
            return compile_to_json(self._registry.parsed(self._registry.schema_by_id(schema_id)), core_library())
        except (SchemaNotFound, SubjectNotFound, VersionNotFound, AvroSchemaError, BadBody) as error:
            return _Missing(f"schema id {schema_id}: {error}", time.monotonic() + MISSING_S)
        except RegistryError as error:
            raise GatewayError(
                Kind.REGISTRY_UNAVAILABLE, f"schema id {schema_id}: {error}", retry_after_s=RETRY_AFTER_S
            ) from error


def _text(item: dict[str, Any]) -> bytes:
    try:
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:  # a JSON value may contain half of a surrogate pair
        return json.dumps(item, separators=(",", ":"), allow_nan=False).encode()


def _raw(message: Message, reason: str) -> dict[str, Any]:
    """Returns the fields of a message with a key or value that JSON cannot represent."""
    parts = (("key", message.key()), ("value", message.value()))
    return {
        **{part: None if content is None else decode_binary(content) for part, content in parts},
        "error_code": Kind.UNDECODABLE.value.code,
        "error": f"key or value: {reason}",
        "base64": [part for part, content in parts if content is not None],
    }


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a message; none if a name is not UTF-8."""
    return message_headers(message) or []


def content_bytes(message: Message) -> int:
    """Returns the size of a message's key, value and headers."""
    return (
        len(message.key() or b"")
        + len(message.value() or b"")
        + sum(len(name) + len(content or b"") for name, content in headers_of(message))
    )
