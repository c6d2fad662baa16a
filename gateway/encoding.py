"""Encodes keys and values of requests to the bytes of messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from headrace.avro_codec.from_json import JsonMismatch
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.schemas import ResolvedSchema


class Format(StrEnum):
    """The formats of keys and values in requests."""

    BINARY = "binary"
    JSON = "json"
    STRING = "string"
    AVRO = "avro"


Encode = Callable[[Any], bytes | None]
"""Function that returns the bytes of a value that was parsed from JSON; None for null. Raises `Unencodable`."""


class Unencodable(ValueError):
    """A value has not the form of its format, or does not fit its schema. The message is a sentence."""


def encode_binary(value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except ValueError as error:  # binascii.Error, or a plain one for characters beyond ASCII
        raise Unencodable(f"expected base64: {error}") from None
    raise Unencodable("expected a text in base64")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_json(value: Any) -> bytes | None:
    """Returns compact JSON text."""
    if value is None:
        return None
    try:
        return _ENCODER.encode(value).encode()
    except RecursionError:
        raise Unencodable("the value is nested too deeply") from None
    except UnicodeEncodeError:
        raise Unencodable("a text contains half of a surrogate pair and has no UTF-8 form") from None
    except ValueError:
        raise Unencodable("a number is outside the range of a double") from None


def encode_string(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unencodable("expected a text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Unencodable("the text contains half of a surrogate pair and has no UTF-8 form") from None


def avro_encoder(schema: ResolvedSchema) -> Encode:
    """Returns the encoder of values in Avro's JSON encoding. A null is a value of the schema."""
    prefix, encode = schema.prefix, schema.encode

    def encode_avro(value: Any) -> bytes | None:
        try:
            return prefix + encode(value)
        except RecursionError:
            raise Unencodable("the value is nested too deeply") from None
        except JsonMismatch as error:
            raise Unencodable(str(error)) from None

    return encode_avro


def encode_null(value: Any) -> bytes | None:
    """Encodes the keys or values of a request that names no schema for them, and may therefore have none."""
    if value is not None:
        raise Unencodable("it has no schema")
    return None


PLAIN: dict[Format, Encode] = {
    Format.BINARY: encode_binary,
    Format.JSON: encode_json,
    Format.STRING: encode_string,
}
"""The encoders of the formats without a schema."""


def encoded(encode: Encode, value: Any, where: str, kind: Kind = Kind.UNCONVERTIBLE) -> bytes | None:
    """Returns the bytes of a value.

    Args:
        where: the place of the value in the request, for the error.
        kind: the kind of the error.

    Raises:
        GatewayError: the value cannot be encoded.
    """
    try:
        return encode(value)
    except Unencodable as error:
        raise GatewayError(kind, f"{where}: {error}") from None
